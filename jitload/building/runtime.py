"""Builds the runtime library, the object file that is linked into every library, once for each compiler.

The parts that only some libraries need (kernels on the CPU, Triton, the C++ launcher) are built in the same way, each
as an object file with a cache entry of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from jitload.building.ninja import (
    COMPILE_FLAGS,
    Step,
    check_is_made,
    compile_step,
    join_step,
    link_step,
    run_ninja,
    write_ninja,
)
from jitload.cache.entry import Entry
from jitload.cache.key import CacheKey
from jitload.cache.store import claim_entry
from jitload.cache.tiers import find_in_tiers, upload_entry
from jitload.settings import Settings
from jitload.toolchain.host import (
    INCLUDE_DIR,
    Compiler,
    compiler_identity,
    find_ninja,
    own_identity,
    tvm_ffi_include_dirs,
)

ObjectName = Literal["runtime", "cpu_runtime", "cpu_watched", "triton_runtime", "torch_runtime", "launcher"]

_RUNTIME_DIR = Path(__file__).parent.parent / "runtime"
_OPTIMIZED = ("-O2", *COMPILE_FLAGS[1:])
_CXX17 = ("-std=c++17", *_OPTIMIZED)
_FOR_TORCH = (*_CXX17, "-fexceptions", "-frtti")
_TORCH_SUBJECTS = ("errors", "functions", "library", "operators", "registration", "tensor", "values")
# The sources of each object file and their options. The code that every call runs is optimised; the rest of `runtime`
# is compiled as quickly as possible.
_SOURCES: dict[ObjectName, dict[str, tuple[str, ...]]] = {
    "runtime": {"launch": _OPTIMIZED, "python": _OPTIMIZED, "module": COMPILE_FLAGS, "cold": COMPILE_FLAGS},
    "cpu_runtime": {"cpu": _CXX17},
    "cpu_watched": {"cpu": (*_CXX17, "-DJITLOAD_CPU_WATCHES=1")},
    "triton_runtime": {"triton": _CXX17},
    "torch_runtime": dict.fromkeys((f"torch_{subject}" for subject in _TORCH_SUBJECTS), _FOR_TORCH),
    "launcher": {"launcher": _CXX17},
}


def find_or_build_objects(
    names: Iterable[ObjectName], compiler: Compiler, cache_dir: Path, settings: Settings
) -> tuple[Path, ...]:
    """Return the paths of jitload's object files with the given names. Build those that the cache lacks.

    The object files are for:

    - `runtime`: every library with a generated wrapper, the C++ through which Python calls kernels
    - `cpu_runtime`: kernels on the CPU
    - `cpu_watched`: kernels on the CPU with `sanitize=` or `debug=`
    - `triton_runtime`: Triton kernels
    - `launcher`: hand-written C++
    - `torch_runtime`: C++ that is written for torch
    """
    return tuple(_find_or_build(name, compiler, cache_dir, settings).product for name in names)


def _find_or_build(name: ObjectName, compiler: Compiler, cache_dir: Path, settings: Settings) -> Entry:
    parts = (
        ("kind", name),
        ("compiler", compiler_identity(compiler, cache_dir)),
        ("jitload", own_identity(cache_dir)),
    )
    key = CacheKey.of(name, parts)
    if entry := find_in_tiers(cache_dir, key, settings):
        return entry
    with claim_entry(cache_dir, key, settings) as work:
        if work.entry:
            return work.entry
        write_ninja(work.dir, _steps(name, compiler))
        run_ninja(find_ninja(settings), work.dir, name=f"jitload's {name}")
        check_is_made(work.dir / f"{name}.o", compiler.command)
        entry = work.publish(f"{name}.o")
    upload_entry(entry, key, settings)
    return entry


def _steps(name: ObjectName, compiler: Compiler) -> tuple[Step, ...]:
    """Return the steps that make an object file: compile each source, and join the results if there are several."""
    directory = INCLUDE_DIR / "jitload" if name == "launcher" else _RUNTIME_DIR
    sources, includes = _SOURCES[name], include_flags()
    outputs = tuple(f"{source}.o" for source in sources) if len(sources) > 1 else (f"{name}.o",)
    compiles = tuple(
        compile_step(compiler.command, (*flags, *includes), str(directory / f"{source}.cc"), output)
        for (source, flags), output in zip(sources.items(), outputs, strict=True)
    )
    return compiles if len(compiles) == 1 else (*compiles, join_step(compiler.command, outputs, f"{name}.o"))


def library_steps(
    compiler: Compiler, embedded: Sequence[str], runtimes: Sequence[Path], slug: str
) -> tuple[Step, Step]:
    """Return the steps that compile a generated wrapper and link it with `runtimes` to `<slug>.so`.

    The wrapper is the file `wrapper.cc`, which embeds the files `embedded`.
    """
    return (
        wrapper_step(compiler, embedded),
        link_step(compiler.command, ("wrapper.o", *map(str, runtimes)), f"{slug}.so"),
    )


def wrapper_step(compiler: Compiler, embedded: Sequence[str]) -> Step:
    """Return the step that compiles the generated file `wrapper.cc`, which embeds the files `embedded`."""
    flags = (*COMPILE_FLAGS, *include_flags())
    return compile_step(compiler.command, flags, "wrapper.cc", "wrapper.o", reads=tuple(embedded))


def include_flags() -> tuple[str, ...]:
    """Return the `-I` options for the headers of generated wrappers and of the runtime library."""
    return tuple(f"-I{path}" for path in (_RUNTIME_DIR, INCLUDE_DIR, *tvm_ffi_include_dirs()))
