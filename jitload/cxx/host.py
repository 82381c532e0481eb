"""Hand-written C++ in, a library in a directory out: what a miss does where the wrapper is the user's own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from jitload.building.background import run_in_background
from jitload.building.ninja import Step, run_ninja, write_ninja
from jitload.building.runtime import find_or_build_launcher
from jitload.cache.store import Work
from jitload.cuda.compile import compile_device_code
from jitload.cxx.embedding import check_embeds
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
from jitload.cxx.nvcc import is_of_nvcc, nvcc_failure, write_host_compiler
from jitload.cxx.precompiled import (
    HeaderSpec,
    Precompiled,
    find_precompiled,
    header_spec,
    refuse,
    remove_damaged,
    start_precompiling,
)
from jitload.cxx.relocatable import (
    find_exports,
    includes_launcher,
    make_weak,
    merge_step,
    read_global_symbols,
    read_undefined_symbols,
    show_exports,
)
from jitload.cxx.steps import (
    FLAGS,
    STANDARD,
    Build,
    compile_steps,
    driver_step,
    include_flags,
    link_objects,
    write_host_sources,
)
from jitload.elf.file import read_dynamic_symbols
from jitload.errors import CompileError
from jitload.request.request import HostSource, Request
from jitload.toolchain.cuda import CudaToolchain, Nvcc
from jitload.toolchain.host import Compiler, find_ninja, own_include_dir, tvm_ffi_include_dirs

_Steps = tuple[Step, ...]


def build_host_library(
    request: Request, kit: CudaToolchain | Nvcc | None, compiler: Compiler, work: Work, *, verbose: bool
) -> tuple[Path, ...]:
    """Build the library of a request in a work directory, and return the files outside that it was made from."""
    assert request.host is not None
    host = request.host
    for name, data in host.cubins:
        from jitload.elf.cubin import read_image

        read_image(data, name=f"embed_cubin[{name!r}]")

    def find_launcher() -> Path:
        return find_or_build_launcher(compiler, work.cache_dir, request.settings).product

    launcher = run_in_background(find_launcher) if _may_launch(host) and not host.is_object else None
    headers: tuple[Path, ...] = ()
    if request.pieces:
        assert isinstance(kit, CudaToolchain)
        (compiled,) = compile_device_code(request, kit)
        headers = compiled.headers
        host = host._replace(cubins=(*host.cubins, (request.name, compiled.cubin.data)))
    check_embeds(host, [Path(path) for path in request.include_dirs], request.name if request.pieces else "")
    write_host_sources(request, host, work.dir)
    if host.is_mixed:
        write_host_compiler(compiler, work.dir)
    build = Build(
        request=request,
        host=host,
        kit=kit,
        compiler=compiler,
        cubins=tuple(name for name, _ in host.cubins),
        link_flags=with_runtime(present_libraries(host.link_flags, compiler), kit, request.settings),
    )
    if host.is_object:
        _make_object(build, find_launcher, work, verbose=verbose)
        return tuple(sorted({*headers, *_headers_read(build, work), *map(Path, host.objects)}))
    specs = _header_specs(build, work)
    build, linked = _compile(build, specs, launcher, work, verbose=verbose)
    if launcher is None and _needs_launcher(compile_steps(build), work.dir):
        launcher = run_in_background(find_launcher)
    shared = launcher.result() if launcher else None
    if (_quick_link(build, shared),) != linked or not _product(build, work).exists():
        _link(build, shared, work, verbose=verbose)
    if _shows_more(build, work):
        _link(build, shared, work, verbose=verbose)
    headers = (*headers, *_link_cuda(build, shared, work, verbose=verbose))
    libraries = (*map(Path, host.objects), *libraries_given(build.link_flags))
    read = tuple(sorted({*headers, *_headers_read(build, work), *libraries}))
    _precompile_later(dict.fromkeys(specs.values()), work, request)
    return read


def _precompile_later(specs: Iterable[HeaderSpec], work: Work, request: Request) -> None:
    """Start to precompile headers in the background; the thread is no daemon, so that it ends before the program."""

    def start() -> None:
        for header in specs:
            start_precompiling(header, work.cache_dir, request.settings)

    threading.Thread(target=start, name="jitload-precompile", daemon=False).start()


def _link(build: Build, launcher: Path | None, work: Work, *, verbose: bool) -> None:
    compiles = compile_steps(build)
    _run(build, (*compiles, link_objects(build, compiles, launcher)), work.dir, verbose=verbose)


def _link_cuda(build: Build, launcher: Path | None, work: Work, *, verbose: bool) -> tuple[Path, ...]:
    """Link once more with what the library calls of CUDA and has not got; return the libraries that this took."""
    compiles = compile_steps(build)
    if text := missing_driver_text(_needed(build, work), build.kit, build.link_flags):
        compiles = (*compiles, driver_step(text, build, work.dir))
        _run(build, (*compiles, link_objects(build, compiles, launcher)), work.dir, verbose=verbose)
    cudart = missing_cudart(_needed(build, work), build.kit, build.link_flags, name=build.request.name)
    if not cudart:
        return ()
    link = link_objects(build, compiles, launcher)
    _run(build, (*compiles, replace(link, command=(*link.command, *cudart))), work.dir, verbose=verbose)
    return (Path(cudart[0]),)


def _make_object(build: Build, find_launcher: Callable[[], Path], work: Work, *, verbose: bool) -> None:
    """Compile, and make one object of it all; what it lacks is for the link of the user's own to find."""
    steps = compile_steps(build)
    _run(build, steps, work.dir, verbose=verbose)
    for unit in build.host.units:
        show_exports(work.dir / f"{unit.file}.o")
    given = [*(work.dir / step.output for step in steps), *map(Path, build.host.objects)]
    missing, shared = read_undefined_symbols(given), list[Path]()
    if text := missing_driver_text(missing, build.kit, build.link_flags):
        steps = (*steps, driver_step(text, build, work.dir))
        shared.append(work.dir / steps[-1].output)
    if includes_launcher(missing):
        shared.append(find_launcher())
    launcher = [str(path) for path in shared if path.parent != work.dir]
    objects = (*(step.output for step in steps), *launcher, *build.host.objects)
    _run(build, (*steps, merge_step(build.compiler, objects, build.request.product)), work.dir, verbose=verbose)
    if shared:
        make_weak(_product(build, work), read_global_symbols(shared))


def _product(build: Build, work: Work) -> Path:
    return work.dir / build.request.product


def _needed(build: Build, work: Work) -> tuple[str, ...]:
    """Return the names that the library leaves to others."""
    return read_dynamic_symbols(_product(build, work).read_bytes()).undefined


def _shows_more(build: Build, work: Work) -> bool:
    """Make functions for tvm-ffi visible that the library has not got among its own; tell whether there were any."""
    offered = {*read_dynamic_symbols(_product(build, work).read_bytes()).defined}
    objects = [work.dir / f"{unit.file}.o" for unit in build.host.units]
    shown = [show_exports(path) for path in objects if find_exports(path) - offered]
    return any(shown)


def _may_launch(host: HostSource) -> bool:
    """Tell whether the launcher is likely to be needed: it is made while the compiler works."""
    texts = [text for unit in host.units for _, text in unit.pieces]
    return bool(host.cubins or host.objects) or any("/cuda/" in text or "jitload" in text for text in texts)


def _needs_launcher(compiles: Sequence[Step], work_dir: Path) -> bool:
    return any(b"_ZN7jitload2v1" in (work_dir / step.output).read_bytes() for step in compiles)


def _likely_link(build: Build, launcher: Future[Path] | None) -> _Steps:
    """Return the link that will probably do, to go with the compile; none where only the objects can tell."""
    if build.link_flags or (launcher and not launcher.done()):
        return ()
    return (_quick_link(build, launcher.result() if launcher else None),)


def _quick_link(build: Build, launcher: Path | None) -> Step:
    link = link_objects(build, compile_steps(build), launcher)
    flags = [flag for unit in build.host.units for flag in (*unit.flags, *build.host.flags)]
    return replace(link, command=(*link.command, *quick_linker(build.compiler, flags)))


def _run(build: Build, steps: Sequence[Step], work_dir: Path, *, verbose: bool) -> None:
    request = build.request
    write_ninja(work_dir, steps)
    try:
        run_ninja(find_ninja(request.settings), work_dir, name=request.name, verbose=verbose, level=logging.WARNING)
    except CompileError as error:
        if isinstance(build.kit, Nvcc) and is_of_nvcc(error, build.kit):
            raise nvcc_failure(error, build.kit) from None
        raise


def _run_with(then: _Steps, build: Build, work: Work, *, verbose: bool) -> None:
    """Compile, and try the link that will probably do; one that fails is made again when it is known."""
    try:
        _run(build, (*compile_steps(build), *then), work.dir, verbose=verbose)
    except CompileError as error:
        if not (then and " -shared " in " ".join(error.command)):
            raise


# ---- precompiled headers ----------------------------------------------------------------------------------


def _header_specs(build: Build, work: Work) -> dict[str, HeaderSpec]:
    """Return the precompiled header that each unit could use."""
    around = (STANDARD, *FLAGS), include_flags(build.kit.include_dirs if build.kit else (), ())
    compiler, cache_dir, specs = build.compiler, work.cache_dir, {}
    for unit in build.host.units:
        flags = (*unit.flags, *build.host.flags)
        if spec := header_spec(unit, flags, compiler=compiler, around=around, cache_dir=cache_dir):
            specs[unit.file] = spec
    return specs


def _compile(
    build: Build, specs: Mapping[str, HeaderSpec], launcher: Future[Path] | None, work: Work, *, verbose: bool
) -> tuple[Build, _Steps]:
    """Compile with the precompiled headers that exist; return the build as it was done, and the link done with it.

    The result counts only if the headers were intact until the end. A compile that fails with them is repeated without
    them, so that the user sees errors of the source alone.
    """
    precompiled = _find_headers(build, specs, work)
    if not precompiled:
        return _compile_without(build, launcher, work, verbose=verbose)
    distinct = {header.path: header for header in precompiled.values()}
    checks = {path: run_in_background(header.is_intact) for path, header in distinct.items()}
    with_headers = replace(build, precompiled=precompiled)
    then, failure = _likely_link(with_headers, launcher), None
    try:
        _run_with(then, with_headers, work, verbose=verbose)
    except CompileError as error:
        failure = error
    damaged = [distinct[path] for path, check in checks.items() if not check.result()]
    for header in damaged:
        remove_damaged(header)
    if failure is None and not damaged:
        return with_headers, then
    done = _compile_without(build, launcher, work, verbose=verbose)
    for file in precompiled if failure and not damaged else ():
        refuse(specs[file].key, work.cache_dir, str(failure))
    return done


def _compile_without(build: Build, launcher: Future[Path] | None, work: Work, *, verbose: bool) -> tuple[Build, _Steps]:
    then = _likely_link(build, launcher)
    _run_with(then, build, work, verbose=verbose)
    return build, then


def _find_headers(build: Build, specs: Mapping[str, HeaderSpec], work: Work) -> dict[str, Precompiled]:
    """Return the precompiled header of each unit that has one."""
    settings, dirs = build.request.settings, build.request.include_dirs
    headers = {file: find_precompiled(spec, work.cache_dir, settings, dirs) for file, spec in specs.items()}
    return {file: header for file, header in headers.items() if header}


# ---- what it was made from ----


def _headers_read(build: Build, work: Work) -> Iterator[Path]:
    """Yield the files that the compiler read and no version in the key speaks for, and where others could appear."""
    known = (own_include_dir().parent, *tvm_ffi_include_dirs(), *(build.kit.include_dirs if build.kit else ()))
    request, units = build.request, build.host.units
    flags = [flag for unit in units for flag in (*build.host.flags, *unit.flags)]
    dirs = search_dirs(tuple(map(Path, request.include_dirs)), flags, request.settings.environment)
    texts = [text for unit in units for _, text in unit.pieces]
    read = [Path(header.path) for found in build.precompiled.values() for header in found.entry.dependencies]
    for unit in units:
        text = (work.dir / f"{unit.file}.d").read_text(errors="surrogateescape")
        read += read_depfile(text.replace("$", "$$") if unit.is_mixed else text)  # nvcc does not double them
    yield from headers_to_record(texts, read, dirs, known, cache_dir=work.cache_dir)
    yield from files_named([*flags, *build.link_flags])
