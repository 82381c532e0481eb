"""Hand-written C++ in, a library in a directory out: what a miss does where the wrapper is the user's own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from jitload.cache.store import Work
from jitload.cxx.embedding import check_embeds, embed_text
from jitload.cxx.headers import headers_to_record, read_depfile, search_dirs
from jitload.cxx.link import (
    files_named,
    libraries_given,
    missing_cudart,
    missing_driver_text,
    present_libraries,
    quick_linker,
    with_runtime,
)
from jitload.cxx.nvcc import is_of_nvcc, nvcc_failure, nvcc_step, write_host_compiler
from jitload.cxx.precompiled import (
    Precompiled,
    Wanted,
    find_precompiled,
    refuse,
    set_aside,
    start_precompiling,
    wanted_header,
)
from jitload.cxx.text import unit_text
from jitload.device.elf import read_dynamic_symbols
from jitload.errors import CompileError
from jitload.host_build import Step, compile_step, run_ninja, write_ninja
from jitload.library import check_is_device_code, compile_archs, in_background
from jitload.request import Request
from jitload.runtime import find_or_build_launcher
from jitload.sources import HostSource, Unit
from jitload.toolchain import Compiler, Kit, Nvcc, find_ninja, own_include_dir, tvm_ffi_include_dirs

_STANDARD = "-std=c++17"
_FLAGS = ("-O2", "-pipe", "-fPIC", "-fvisibility=hidden", "-DJITLOAD_LAUNCHER_LINKED")
# Bound when it is loaded, so that an unknown symbol is an error then and not at the first call; and never unloaded.
_LINK_FLAGS = ("-shared", "-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,-z,noexecstack")

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
        from jitload.device.cubin import read_image

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
        link_flags=with_runtime(present_libraries(host.link_flags, compiler), kit, request.settings),
    )
    wanted = _wanted_headers(build, work)
    build, linked = _compile(build, wanted, launcher, work, verbose=verbose)
    if launcher is None and _needs_launcher(compile_steps(build), work.dir):
        launcher = in_background(find_launcher)
    shared = launcher.result() if launcher else None
    if (_quick_link(build, shared),) != linked or not _product(build, work).exists():
        _link(build, shared, work, verbose=verbose)
    if _lacks_errors(build, wanted, work):
        build = replace(build, precompiled={})
        _link(build, shared, work, verbose=verbose)
    headers = (*headers, *_link_cuda(build, shared, work, verbose=verbose))
    libraries = (*map(Path, host.objects), *libraries_given(build.link_flags))
    read = tuple(sorted({*headers, *_headers_read(build, work), *libraries}))
    _precompile_later(dict.fromkeys(wanted.values()), work, request)
    return read


def _precompile_later(wanted: Iterable[Wanted], work: Work, request: Request) -> None:
    """Have precompiled headers made; the thread that starts it outlasts the program's last line, and no build waits."""

    def start() -> None:
        for one in wanted:
            start_precompiling(one, work.cache_dir, request.settings)

    threading.Thread(target=start, name="jitload-precompile", daemon=False).start()


def _link(build: _Build, launcher: Path | None, work: Work, *, verbose: bool) -> None:
    compiles = compile_steps(build)
    _run(build, (*compiles, link_objects(build, compiles, launcher)), work.dir, verbose=verbose)


def _link_cuda(build: _Build, launcher: Path | None, work: Work, *, verbose: bool) -> tuple[Path, ...]:
    """Link once more with what the library calls of CUDA and has not got; return the libraries that this took."""
    compiles = compile_steps(build)
    if text := missing_driver_text(_needed(build, work), build.kit, build.link_flags):
        compiles = (*compiles, _driver_step(text, build, work))
        _run(build, (*compiles, link_objects(build, compiles, launcher)), work.dir, verbose=verbose)
    cudart = missing_cudart(_needed(build, work), build.kit, build.link_flags, name=build.request.name)
    if not cudart:
        return ()
    link = link_objects(build, compiles, launcher)
    _run(build, (*compiles, replace(link, command=(*link.command, *cudart))), work.dir, verbose=verbose)
    return (Path(cudart[0]),)


def _product(build: _Build, work: Work) -> Path:
    return work.dir / f"{build.request.slug}.so"


def _needed(build: _Build, work: Work) -> tuple[str, ...]:
    """Return the names that the library leaves to others."""
    return read_dynamic_symbols(_product(build, work).read_bytes()).needed


def _lacks_errors(build: _Build, wanted: Mapping[str, Wanted], work: Work) -> bool:
    """Tell whether the object beside a precompiled header lacks something; such a pair is not used again."""
    if not build.precompiled or not (missing := [name for name in _needed(build, work) if "3tvm3ffi" in name]):
        return False
    for file in build.precompiled:
        refuse(wanted[file].recipe, work.cache_dir, f"the library needs {missing[0]}")
    return True


def _driver_step(text: str, build: _Build, work: Work) -> Step:
    (work.dir / "driver_calls.c").write_text(text, encoding="utf-8")
    return compile_step(build.compiler.command, ("-x", "c", *_FLAGS), "driver_calls.c", "driver_calls.c.o")


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
    return (_quick_link(build, launcher.result() if launcher else None),)


def _quick_link(build: _Build, launcher: Path | None) -> Step:
    link = link_objects(build, compile_steps(build), launcher)
    flags = [flag for unit in build.host.units for flag in (*unit.flags, *build.host.flags)]
    return replace(link, command=(*link.command, *quick_linker(build.compiler, flags)))


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


def _compile(
    build: _Build, wanted: Mapping[str, Wanted], launcher: Future[Path] | None, work: Work, *, verbose: bool
) -> tuple[_Build, _Steps]:
    """Compile, with the precompiled headers that there are; return the build as it was done, and the link done with it.

    What comes of them counts only where they were whole all along. A failure with them is looked at again without: the
    user is told of mistakes in the source and of nothing else.
    """
    without = _likely_link(build, launcher)
    precompiled = _copied_headers(build, wanted, work)
    if not precompiled:
        _run_with(without, build, work, verbose=verbose)
        return build, without
    distinct = {one.header: one for one in precompiled.values()}
    checks = {header: in_background(one.is_whole) for header, one in distinct.items()}
    with_headers = replace(build, precompiled=precompiled)
    then, failure = _likely_link(with_headers, launcher), None
    try:
        _run_with(then, with_headers, work, verbose=verbose)
    except CompileError as error:
        failure = error
    damaged = [distinct[header] for header, check in checks.items() if not check.result()]
    for one in damaged:
        set_aside(one)
    if failure is None and not damaged:
        return with_headers, then
    _run_with(without, build, work, verbose=verbose)
    for file in precompiled if failure and not damaged else ():
        refuse(wanted[file].recipe, work.cache_dir, str(failure))
    return build, without


def _copied_headers(build: _Build, wanted: Mapping[str, Wanted], work: Work) -> dict[str, Precompiled]:
    """Return the precompiled header of each unit that has one, the objects beside them copied to the build."""
    settings, dirs = build.request.settings, build.request.include_dirs
    found = {file: find_precompiled(one, work.cache_dir, settings, dirs) for file, one in wanted.items()}
    precompiled = {file: one for file, one in found.items() if one}
    copied = [one.copy_object(work.dir / name) for name, one in _error_objects(precompiled)]
    return precompiled if all(copied) else {}


def _error_objects(precompiled: Mapping[str, Precompiled]) -> list[tuple[str, Precompiled]]:
    """Return the files of the objects that belong to precompiled headers."""
    headers = {one.header: one for one in precompiled.values()}.values()
    return [(f"errors{number}.o", one) for number, one in enumerate(headers) if one.object_digest]


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
    errors = (name for name, _ in _error_objects(build.precompiled))
    objects = (*(step.output for step in compiles), *errors, *shared, *build.host.objects)
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
    """Yield the files that the compiler read and no version in the key speaks for, and where others could appear."""
    known = (own_include_dir().parent, *tvm_ffi_include_dirs(), *(build.kit.include_dirs if build.kit else ()))
    request, units = build.request, build.host.units
    flags = [flag for unit in units for flag in (*build.host.flags, *unit.flags)]
    dirs = search_dirs(tuple(map(Path, request.include_dirs)), flags, request.settings.environment)
    texts = [text for unit in units for _, text in unit.pieces]
    read = [Path(header.path) for found in build.precompiled.values() for header in found.entry.headers]
    for unit in units:
        text = (work.dir / f"{unit.file}.d").read_text(errors="surrogateescape")
        read += read_depfile(text.replace("$", "$$") if unit.is_mixed else text)  # nvcc does not double them
    yield from headers_to_record(texts, read, dirs, known, cache_dir=work.cache_dir)
    yield from files_named([*flags, *build.link_flags])
