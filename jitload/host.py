"""Hand-written C++ in, a library in a directory out: what a miss does where the wrapper is the user's own."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from jitload.cache import Work
from jitload.driver_calls import driver_calls_text, find_driver_calls
from jitload.elf import read_dynamic_symbols
from jitload.embedding import check_embeds, embed_text
from jitload.errors import CompileError, ToolchainError
from jitload.headers import read_headers, shadowing_paths
from jitload.host_build import Step, compile_step, run_ninja, write_ninja
from jitload.host_headers import read_depfile, unknown_headers
from jitload.host_link import libraries_given, present_libraries
from jitload.library import check_is_device_code, compile_archs, in_background
from jitload.nvcc import find_nvcc_cudart, is_of_nvcc, nvcc_failure, nvcc_step, write_host_compiler
from jitload.precompiled import (
    PRELUDE,
    Precompiled,
    Wanted,
    find_precompiled,
    refuse,
    set_aside,
    start_precompiling,
    wanted_header,
)
from jitload.request import Request
from jitload.runtime import find_or_build_launcher
from jitload.sources import HostSource, Unit
from jitload.toolchain import Compiler, Kit, Nvcc, find_cudart, find_ninja, own_include_dir, tvm_ffi_include_dirs

_STANDARD = "-std=c++17"
_FLAGS = ("-O2", "-pipe", "-fPIC", "-fvisibility=hidden", "-DJITLOAD_LAUNCHER_LINKED")
# Bound when it is loaded, so that an unknown symbol is an error then and not at the first call; and never unloaded.
_LINK_FLAGS = ("-shared", "-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,-z,noexecstack")

_PRELUDE = "".join(f"#include <{name}>\n" for name in PRELUDE)
# What upstream's macro for docs does, which does nothing unless all functions carry metadata.
_DOC = """\
extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi__doc_{name}(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {{
  TVMFFIByteArray text{{{text}, {size}}};
  return TVMFFIStringFromByteArray(&text, result);
}}
"""
_CUDART = re.compile(r"(?:__)?cuda[A-Z]\w*")
_Steps = tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Build:
    """What the steps of a build share."""

    request: Request
    host: HostSource
    kit: Kit | Nvcc | None
    compiler: Compiler
    cubins: tuple[str, ...]
    link_flags: tuple[str, ...]
    precompiled: Mapping[str, Precompiled] = field(default_factory=dict)  # by the unit's file


def make_host_library(
    request: Request, kit: Kit | Nvcc | None, compiler: Compiler, work: Work, *, verbose: bool
) -> tuple[Path, ...]:
    """Build the library of a request in a work directory, and return the files outside that it was made from."""
    assert request.host is not None
    host = request.host
    for name, data in host.cubins:
        from jitload.cubin import read_image

        read_image(data, name=f"embed_cubin[{name!r}]")

    def find_launcher() -> Path:
        return find_or_build_launcher(compiler, work.cache_dir, request.settings).product

    launcher = in_background(find_launcher) if _may_launch(host) else None
    headers: tuple[Path, ...] = ()
    if request.pieces:
        assert isinstance(kit, Kit)
        check_is_device_code(request)
        (compiled,) = compile_archs(request, kit)
        headers = compiled.headers
        host = replace(host, cubins=(*host.cubins, (request.name, compiled.cubin.data)))
    check_embeds(host, [Path(path) for path in request.include_dirs], request.name if request.pieces else "")
    write_host_sources(request, host, work.dir)
    if host.is_mixed:
        write_host_compiler(compiler, work.dir)
    build = _Build(
        request=request,
        host=host,
        kit=kit,
        compiler=compiler,
        cubins=tuple(name for name, _ in host.cubins),
        link_flags=_with_runtime(present_libraries(host.link_flags, compiler), request, kit),
    )
    wanted = _wanted_headers(build, work)
    likely = _likely_link(build, launcher)
    build = _compile(build, wanted, likely, work, verbose=verbose)
    compiles = compile_steps(build)
    if launcher is None and _needs_launcher(compiles, work.dir):
        launcher = in_background(find_launcher)
    link = link_objects(build, compiles, launcher.result() if launcher else None)
    if (link,) != likely or not (work.dir / link.output).exists():
        _run(build, (*compiles, link), work.dir, verbose=verbose)
    if calls := _missing_driver(build, work.dir):
        compiles = (*compiles, calls)
        link = link_objects(build, compiles, launcher.result() if launcher else None)
        _run(build, (*compiles, link), work.dir, verbose=verbose)
    if cudart := _missing_cudart(build, work.dir):
        link = replace(link, command=(*link.command, *cudart))
        _run(build, (*compiles, link), work.dir, verbose=verbose)
        headers = (*headers, Path(cudart[0]))
    linked = (*map(Path, host.objects), *libraries_given(build.link_flags))
    read = tuple(sorted({*headers, *_headers_read(build, work), *linked}))
    for one in dict.fromkeys(wanted.values()):
        start_precompiling(one, work.cache_dir, request.settings)
    return read


def _may_launch(host: HostSource) -> bool:
    """Tell whether the launcher is likely to be needed: it is made while the compiler works."""
    texts = [text for unit in host.units for _, text in unit.pieces]
    return bool(host.cubins or host.objects) or any("/cuda/" in text or "jitload" in text for text in texts)


def _needs_launcher(compiles: Sequence[Step], work_dir: Path) -> bool:
    return any(b"_ZN7jitload2v1" in (work_dir / step.output).read_bytes() for step in compiles)


def _likely_link(build: _Build, launcher: Future[Path] | None) -> _Steps:
    """Return the link that will probably do, to go with the compile; none where only the objects can tell."""
    if build.link_flags or (launcher and not launcher.done()):
        return ()
    return (link_objects(build, compile_steps(build), launcher.result() if launcher else None),)


def _run(build: _Build, steps: Sequence[Step], work_dir: Path, *, verbose: bool) -> None:
    request = build.request
    write_ninja(work_dir, steps)
    try:
        run_ninja(find_ninja(request.settings), work_dir, name=request.name, verbose=verbose, level=logging.WARNING)
    except CompileError as error:
        if isinstance(build.kit, Nvcc) and is_of_nvcc(error, build.kit):
            raise nvcc_failure(error, build.kit) from None
        raise


def _run_with(then: _Steps, build: _Build, work: Work, *, verbose: bool) -> None:
    """Compile, and try the link that will probably do; one that fails is made again when it is known."""
    try:
        _run(build, (*compile_steps(build), *then), work.dir, verbose=verbose)
    except CompileError as error:
        if not (then and " -shared " in " ".join(error.command)):
            raise


# ---- with precompiled headers ----------------------------------------------------------------------------------


def _wanted_headers(build: _Build, work: Work) -> dict[str, Wanted]:
    """Return the precompiled header that would do for each unit, where one would."""
    around = (_STANDARD, *_FLAGS), _include_flags(build.kit.include_dirs if build.kit else (), ())
    compiler, cache_dir, wanted = build.compiler, work.cache_dir, {}
    for unit in build.host.units:
        flags = (*unit.flags, *build.host.flags)
        if found := wanted_header(unit, flags, compiler=compiler, around=around, cache_dir=cache_dir):
            wanted[unit.file] = found
    return wanted


def _compile(build: _Build, wanted: Mapping[str, Wanted], then: _Steps, work: Work, *, verbose: bool) -> _Build:
    """Compile, with the precompiled headers that there are, go on with `then`, and return the build as it was done.

    What comes of them counts only where they were whole all along. A failure with them is looked at again without: the
    user is told of mistakes in the source and of nothing else.
    """
    settings, dirs = build.request.settings, build.request.include_dirs
    found = {file: find_precompiled(one, work.cache_dir, settings, dirs) for file, one in wanted.items()}
    precompiled = {file: one for file, one in found.items() if one}
    if not precompiled:
        _run_with(then, build, work, verbose=verbose)
        return build
    distinct = {one.header: one for one in precompiled.values()}
    checks = {header: in_background(one.is_whole) for header, one in distinct.items()}
    with_headers = replace(build, precompiled=precompiled)
    failure = None
    try:
        _run_with(then, with_headers, work, verbose=verbose)
    except CompileError as error:
        failure = error
    damaged = [distinct[header] for header, check in checks.items() if not check.result()]
    for one in damaged:
        set_aside(one)
    if failure is None and not damaged:
        return with_headers
    _run_with(then, build, work, verbose=verbose)
    for file in precompiled if failure and not damaged else ():
        refuse(wanted[file].recipe, work.cache_dir, str(failure))
    return build


# ---- what is compiled ------------------------------------------------------------------------------------------


def write_host_sources(request: Request, host: HostSource, work_dir: Path) -> None:
    """Write the C++, the cubins, and the assembler text that embeds them."""
    exporting = next((unit for unit in host.units if not unit.is_file), None)
    for unit in host.units:
        exports = (request.functions or ()) if unit is exporting else ()
        text = unit_text(unit, tuple((name, launch.doc or "") for name, launch in exports))
        (work_dir / unit.file).write_text(text, encoding="utf-8", newline="")
    for name, data in host.cubins:
        (work_dir / f"{name}.cubin").write_bytes(data)
    if host.cubins:
        (work_dir / "cubins.s").write_text(embed_text([name for name, _ in host.cubins]), encoding="utf-8")


def unit_text(unit: Unit, exports: Sequence[tuple[str, str]]) -> str:
    """Return what the compiler reads of a unit: its pieces under their own names and lines, and the exports."""
    parts = [] if unit.is_file else [_PRELUDE]
    for label, text in unit.pieces:
        parts.append(f"#line 1 {_quoted(label)}\n{text}\n")
    for name, doc in exports:
        line = _quoted(f"functions['{name}']")
        parts.append(f"#line 1 {line}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, {name});\n")
        if doc:
            parts.append(_DOC.format(name=name, text=_quoted(doc), size=len(doc.encode())))
    return "".join(parts)


def _quoted(text: str) -> str:
    """Return a text as a C++ string literal; what is not plain ASCII stays as it is in UTF-8."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\{ord(found[0]):03o}", text) + '"'


def compile_steps(build: _Build) -> tuple[Step, ...]:
    """Return the commands that make objects: of each unit, and of the cubins."""
    command = build.compiler.command
    steps = [_unit_step(build, unit) for unit in build.host.units]
    if build.cubins:
        reads = tuple(f"{name}.cubin" for name in build.cubins)
        steps.append(compile_step(command, (), "cubins.s", "cubins.o", reads=reads))
    return tuple(steps)


def _unit_step(build: _Build, unit: Unit) -> Step:
    if isinstance(build.kit, Nvcc) and unit.is_mixed:
        include_flags = _include_flags((), build.request.include_dirs)  # nvcc knows its own
        return nvcc_step(build.kit, build.compiler, unit, build.request.archs, include_flags)
    found = build.precompiled.get(unit.file)
    first = ("-include", str(found.header)) if found else ()
    flags = (*first, *_unit_flags(build, unit), "-MD", "-MF", f"{unit.file}.d")
    return compile_step(build.compiler.command, flags, unit.file, f"{unit.file}.o")


def link_objects(build: _Build, compiles: Sequence[Step], launcher: Path | None) -> Step:
    """Return the command that links them with the launcher."""
    shared = () if launcher is None else (str(launcher),)
    objects = (*(step.output for step in compiles), *shared, *build.host.objects)
    product = f"{build.request.slug}.so"
    command = (*build.compiler.command, *objects, *_LINK_FLAGS, "-o", product, *build.link_flags)
    return Step(output=product, command=command, inputs=objects)


def _unit_flags(build: _Build, unit: Unit) -> tuple[str, ...]:
    """Return the options of a unit."""
    return (
        *(("-x", "c") if unit.file.endswith(".c") else (_STANDARD,)),
        *_FLAGS,
        *unit.flags,
        *build.host.flags,
        *_include_flags(build.kit.include_dirs if build.kit else (), build.request.include_dirs),
    )


def _include_flags(cuda_dirs: Sequence[Path], user_dirs: Sequence[str]) -> tuple[str, ...]:
    """Return where headers are: ours come before tvm-ffi's of the same names, the user's before CUDA's."""
    own = own_include_dir().parent
    return (
        *(f"-I{path}" for path in (own / "upstream", own, *user_dirs)),
        *(word for path in (*tvm_ffi_include_dirs(), *cuda_dirs) for word in ("-isystem", str(path))),
    )


def _headers_read(build: _Build, work: Work) -> Iterator[Path]:
    """Yield the headers that the compiler read and no version in the key speaks for, and where others could appear."""
    cuda_dirs = build.kit.include_dirs if build.kit else ()
    known = (own_include_dir().parent, *tvm_ffi_include_dirs(), *cuda_dirs)
    dirs = tuple(map(Path, build.request.include_dirs))
    texts = [text for unit in build.host.units for _, text in unit.pieces]
    yield from (path for path in read_headers(texts, dirs, known) if path.is_absolute())
    read = [Path(header.path) for found in build.precompiled.values() for header in found.entry.headers]
    for unit in build.host.units:
        text = (work.dir / f"{unit.file}.d").read_text(errors="surrogateescape")
        read += read_depfile(text.replace("$", "$$") if unit.is_mixed else text)  # nvcc does not double them
    yield from shadowing_paths(read, (*dirs, *known[1:]) if dirs else ())
    yield from unknown_headers(read, (*known, work.cache_dir))


# ---- CUDA's libraries at the link ------------------------------------------------------------------------------


def _missing_driver(build: _Build, work_dir: Path) -> Step | None:
    """Write the driver's functions that the library calls and nothing given provides; return how to compile them."""
    if not isinstance(build.kit, Kit) or any("libcuda" in flag or flag == "-lcuda" for flag in build.link_flags):
        return None
    needed = read_dynamic_symbols((work_dir / f"{build.request.slug}.so").read_bytes()).needed
    functions = find_driver_calls(needed, build.kit.include_dirs)
    if not functions:
        return None
    (work_dir / "driver_calls.c").write_text(driver_calls_text(functions), encoding="utf-8")
    return compile_step(build.compiler.command, ("-x", "c", *_FLAGS), "driver_calls.c", "driver_calls.c.o")


def _with_runtime(flags: tuple[str, ...], request: Request, kit: Kit | Nvcc | None) -> tuple[str, ...]:
    """Add the CUDA runtime library that what nvcc made needs in any case, and where it is, to the link's options."""
    cudart = find_nvcc_cudart(kit, request.settings) if isinstance(kit, Nvcc) else None
    if cudart is None:
        return flags
    library = () if any("cudart" in flag for flag in flags) else (str(cudart),)
    return (*flags, *library, f"-Wl,-rpath,{cudart.parent}")


def _missing_cudart(build: _Build, work_dir: Path) -> tuple[str, ...]:
    """Return what to link for the functions of the CUDA runtime that the library uses and nothing given provides.

    Raises:
        ToolchainError: There is no CUDA runtime library to link.
    """
    needed = read_dynamic_symbols((work_dir / f"{build.request.slug}.so").read_bytes()).needed
    functions = sorted(name for name in needed if _CUDART.fullmatch(name))
    if not functions or any("cudart" in flag for flag in build.link_flags):
        return ()
    cudart = find_cudart(build.kit) if isinstance(build.kit, Kit) else None
    if cudart is None:
        raise ToolchainError(
            f"module {build.request.name!r} calls {', '.join(functions[:3])}, and there is no CUDA runtime library to "
            "link. Install it with: pip install nvidia-cuda-runtime  (nvidia-cuda-runtime-cu12 for CUDA 12), or name "
            "one in extra_ldflags=[…]."
        )
    return (str(cudart), f"-Wl,-rpath,{cudart.parent}")
