"""Writes build results to the user's paths: a library to a directory, or an object file that the user links."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jitload.building.native import NativeName
from jitload.building.ninja import join_step, run_ninja, write_ninja
from jitload.building.runtime import find_objects
from jitload.cache.entry import Entry, check_files, read_manifest
from jitload.errors import CacheError, JitLoadError
from jitload.request.request import Request
from jitload.toolchain.arch import CPU
from jitload.toolchain.host import find_compiler, find_ninja
from jitload.toolchain.private_files import sync_file
from jitload.words import Argument, Words


def install_library(entry: Entry, request: Request, directory: Path) -> tuple[Path, Path]:
    """Copy the library into a directory under two names: `<name>.so`, and a name that only this build has.

    If the file system has hard links, both names refer to one file. A process that loads both names then loads one
    library.

    Returns:
        The path with the build's own name, for loading the library, and the path of `<name>.so`. A new build must have
        a new path, because the dynamic loader does not read the same path twice.
    """
    directory = directory.absolute()
    build_id = f"{entry.dir.parent.name.rpartition('-')[2][:16]}-{entry.dir.name.replace('-', '')[:12]}"
    unique_path, path = directory / f"{request.slug}-{build_id}.so", directory / f"{request.slug}.so"
    if not unique_path.is_file() or unique_path.read_bytes() != entry.product.read_bytes():
        copy_file(entry.product, unique_path)
    with _replacing(path) as fresh:
        try:
            fresh.hardlink_to(unique_path)
        except OSError:  # this file system has no hard links
            shutil.copyfile(entry.product, fresh)
    return unique_path, path


def copy_file(source: Path, target: Path) -> Path:
    """Copy a file to the path `target` atomically, and return `target`."""
    with _replacing(target) as fresh:
        shutil.copyfile(source, fresh)
    return target


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Yield an unused path beside the target. At the end of the block, the file at that path replaces the target.

    The file is on the disk by then, because nothing checks it later, as a hit checks the files of the cache.
    """
    fresh = target.with_name(f".jitload-{secrets.token_hex(8)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():
            raise JitLoadError(f"{target} cannot be written: it is not a regular file")
        try:
            yield fresh
            sync_file(fresh)
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise JitLoadError(f"{target} cannot be written: {error.strerror}") from error


def write_object(entry: Entry, request: Request, target: Path) -> Path:
    """Link the objects of a kernel library and the runtime library into one object file, and return `target`.

    A user's library can contain only one such object file. Only the exported functions of the object file are visible.
    """
    compiler, settings = find_compiler(request.settings), request.settings
    names: list[NativeName] = ["runtime"]
    if CPU in request.archs:
        if request.instrumentation:
            raise JitLoadError(
                Words(
                    *("an object file cannot be built with ", Argument("sanitize"), " or ", Argument("debug")),
                    ": leave them out, or build a library",
                )
            )
        names.append("cpu_runtime")
    runtimes = find_objects(names, settings)
    objects = tuple(map(str, (*_check_objects(entry), *runtimes)))
    with tempfile.TemporaryDirectory(prefix="jitload-") as work:
        work_dir = Path(work)
        write_ninja(work_dir, (join_step(compiler.command, objects, "whole.o"),))
        run_ninja(find_ninja(settings), work_dir, name=request.name)
        return copy_file(work_dir / "whole.o", target)


def _check_objects(entry: Entry) -> list[Path]:
    manifest = read_manifest(entry.dir)
    objects = sorted(name for name in manifest["files"] if name.endswith(".o"))
    try:
        check_files(entry.dir, manifest, objects)
    except (OSError, ValueError) as error:
        raise CacheError(f"the cache entry {entry.dir} is damaged: {error}. Remove it and build again.") from error
    return [entry.dir / name for name in objects]
