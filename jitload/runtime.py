"""The part that all libraries share, compiled once for a compiler and kept in the cache as an object."""

from __future__ import annotations

from pathlib import Path

from jitload.cache import Entry, Recipe, claim_entry, find_entry
from jitload.host_build import COMPILE_FLAGS, Step, compile_step, run_ninja, write_ninja
from jitload.identity import compiler_identity, own_identity
from jitload.settings import Settings
from jitload.toolchain import Compiler, find_ninja, own_include_dir, tvm_ffi_include_dirs

# Only launch.cc is on the way of a launch; the rest is compiled for a quick first build.
_SOURCES = {
    "launch": ("-O2", *COMPILE_FLAGS[1:]),
    "device": COMPILE_FLAGS,
    "explain": COMPILE_FLAGS,
    "python": ("-O2", *COMPILE_FLAGS[1:]),
}


def find_or_build_runtime(compiler: Compiler, cache_dir: Path, settings: Settings) -> Entry:
    """Return the entry with the runtime for this compiler, building it if there is none."""
    parts = (
        ("kind", "runtime"),
        ("compiler", compiler_identity(compiler, cache_dir)),
        ("jitload", own_identity(cache_dir)),
    )
    recipe = Recipe(name="runtime", parts=parts)
    if entry := find_entry(cache_dir, recipe, settings):
        return entry
    with claim_entry(cache_dir, recipe, settings) as work:
        if work.entry:
            return work.entry
        write_ninja(work.dir, _steps(compiler))
        run_ninja(find_ninja(settings), work.dir, name="jitload's runtime")
        return work.publish("runtime.o")


def _steps(compiler: Compiler) -> tuple[Step, ...]:
    compiles = tuple(
        compile_step(compiler.command, (*flags, *include_flags()), str(own_include_dir() / f"{name}.cc"), f"{name}.o")
        for name, flags in _SOURCES.items()
    )
    objects = tuple(step.output for step in compiles)
    command = (*compiler.command, "-r", "-nostdlib", *objects, "-o", "runtime.o")
    return (*compiles, Step(output="runtime.o", command=command, inputs=objects))


def include_flags() -> tuple[str, ...]:
    """Return the options by which the host compiler finds our headers, tvm-ffi's and DLPack's."""
    return tuple(f"-I{path}" for path in (own_include_dir().parent, *tvm_ffi_include_dirs()))
