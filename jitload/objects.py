"""A library of kernels in the cache in, one object file for a link of the user's own out."""

from __future__ import annotations

import tempfile
from pathlib import Path

from jitload.arch import CPU
from jitload.cache.entry import Entry, check_file, read_manifest
from jitload.errors import CacheError, JitLoadError
from jitload.host_build import Step, run_ninja, write_ninja
from jitload.placing import copy_library
from jitload.request.request import Request
from jitload.runtime import find_or_build_cpu_runtime, find_or_build_runtime
from jitload.toolchain.host import find_compiler, find_ninja


def write_object(entry: Entry, request: Request, target: Path) -> Path:
    """Put the objects that a library of kernels was linked from into one, with its cubins; its exports stay visible.

    Every other name is hidden and not local, so that a library of the user's can hold one such object.
    """
    compiler, settings = find_compiler(request.settings), request.settings
    cache_dir = entry.dir.parent.parent
    shared = find_or_build_runtime(compiler, cache_dir, settings).product
    others: tuple[str, ...] = ()
    if CPU in request.archs:
        if request.checks:
            raise JitLoadError("sanitize= and debug= make a library; leave them out for an object")
        others = (str(find_or_build_cpu_runtime(compiler, cache_dir, settings).product),)
    objects = (*map(str, _objects_of(entry)), str(shared), *others)
    command = (*compiler.command, "-r", "-nostdlib", *objects, "-o", "whole.o")
    with tempfile.TemporaryDirectory(prefix="jitload-") as work:
        write_ninja(Path(work), (Step(output="whole.o", command=command, inputs=objects),))
        run_ninja(find_ninja(settings), Path(work), name=request.name)
        return copy_library(Path(work) / "whole.o", target)


def _objects_of(entry: Entry) -> list[Path]:
    """Return the objects of an entry, whole as the library is.

    Raises:
        CacheError: One is not what the build made.
    """
    kept = {name: facts for name, facts in read_manifest(entry.dir)["files"].items() if name.endswith(".o")}
    for name, (size, digest) in kept.items():
        try:
            check_file(entry.dir / name, size, digest)
        except (OSError, ValueError) as error:
            problem = f"the cache entry {entry.dir} is damaged: {error}. Remove it and build again."
            raise CacheError(problem) from error
    return [entry.dir / name for name in sorted(kept)]
