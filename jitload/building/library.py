"""Links the library of kernels that have a record."""

from __future__ import annotations

import shutil
from pathlib import Path

from jitload.building.ninja import check_is_made, run_ninja, write_ninja
from jitload.building.runtime import find_objects, library_steps
from jitload.cache.entry import MANIFEST, Entry, handle_problem, key_dir_of
from jitload.cache.key import CacheKey
from jitload.cache.listing import check_leaf
from jitload.cache.store import Work, claim_entry
from jitload.cache.tiers import upload_entry
from jitload.codegen.wrapper import write_wrapper
from jitload.request.request import Request
from jitload.toolchain.host import find_compiler, find_ninja


def link_library(request: Request, work_dir: Path, *, is_urgent: bool = True) -> None:
    """Compile and link the library of the kernels in a work directory. If it is not urgent, other programs come first.

    Raises:
        ToolchainError: The C++ compiler or ninja is missing.
        CompileError: The compiler failed.
    """
    compiler = find_compiler(request.settings)
    runtimes = find_objects(("runtime", "triton_runtime") if request.triton else ("runtime",), request.settings)
    write_wrapper(work_dir)
    write_ninja(work_dir, library_steps(compiler, runtimes, request.product))
    ninja = find_ninja(request.settings)
    run_ninja(ninja, work_dir, name=request.name, is_urgent=is_urgent)
    check_is_made(work_dir / request.product, compiler.command)
    (work_dir / "wrapper.o").unlink(missing_ok=True)  # another copy of all cubins


def is_whole(recorded: Entry, cache_dir: Path) -> bool:
    """Return whether all files of an entry are undamaged. If not, rename the entry if it is in `cache_dir`.

    A hit checks only the files that it loads. The others may be truncated, if the machine crashed after the build.
    """
    try:
        check_leaf(recorded.dir)
    except (OSError, ValueError, RecursionError) as problem:
        handle_problem(recorded.dir, problem, may_rename=recorded.dir.is_relative_to(cache_dir))
        return False
    return True


def publish_library(recorded: Entry, request: Request, work: Work, *, is_urgent: bool = True) -> Entry:
    """Link the library of kernels that have an entry, in a copy of this entry, and publish the copy."""
    for path in recorded.dir.iterdir():
        if path.name != MANIFEST:
            shutil.copyfile(path, work.dir / path.name)
    link_library(request, work.dir, is_urgent=is_urgent)
    return work.publish(request.product, recorded.dependencies)


def build_library(recorded: Entry, request: Request, key: CacheKey, cache_dir: Path) -> None:
    """Build the library of kernels that have an entry, unless there is one. Other programs come first.

    The entry may be in another cache, which is only read.

    Raises:
        ToolchainError: The C++ compiler or ninja is missing.
        CacheWriteError: The cache cannot be written. A library elsewhere would be of no use to the next process.
    """
    if recorded.dir.parent.name != key_dir_of(cache_dir, key).name:
        return  # the entry is of a bundle, and another NVRTC may have made it
    find_compiler(request.settings)
    find_ninja(request.settings)
    with claim_entry(cache_dir, key, request.settings, needs_library=True) as work:
        if work.entry or not is_whole(recorded, cache_dir):
            return
        entry = publish_library(recorded, request, work, is_urgent=False)
    upload_entry(entry, key, request.settings)
