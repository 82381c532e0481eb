"""Build the library, object file or program of a request that has hand-written C++.

One run of ninja compiles and tries a link that will probably be sufficient. The compiled objects then show what the
link lacks, such as functions of CUDA. If anything is missing, the library is linked again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from jitload.building.files_read import files_in_options, headers_to_record, read_depfile, search_dirs
from jitload.building.native import NativeName
from jitload.building.ninja import Step, run_ninja, write_ninja
from jitload.building.resources import run_in_background
from jitload.building.runtime import find_objects
from jitload.cache.store import Work
from jitload.cuda.messages import target_hint, type_hint
from jitload.elf.file import read_dynamic_symbols
from jitload.errors import CompileError
from jitload.host_cpp import link, objects, precompiled
from jitload.host_cpp.embedding import check_cubins, check_embeds, missing_cubin_hint
from jitload.host_cpp.functions import (
    check_has_exports,
    choose_host_exports,
    export_hint,
    has_typed,
    needs_prelude,
    read_typed_functions,
    write_host_wrapper,
)
from jitload.host_cpp.nvcc import device_runtime, is_of_nvcc, nvcc_failure
from jitload.host_cpp.steps import (
    FLAGS,
    STANDARD,
    HostBuild,
    compile_steps,
    include_flags,
    link_step,
    merge_step,
    nvcc_compile_steps,
    object_paths,
    with_driver_calls,
    with_templates,
    write_host_sources,
)
from jitload.host_cpp.torch_conditions import check_conditions
from jitload.host_cpp.torch_errors import torch_hint
from jitload.request.options import old_dialect
from jitload.request.request import HostSource, Request
from jitload.toolchain.cuda import CudaToolchain, Nvcc
from jitload.toolchain.host import INCLUDE_DIR, Compiler, find_ninja, tvm_ffi_include_dirs
from jitload.toolchain.libraries import header_hint, library_include_dirs


def build_host_library(
    request: Request, cuda: CudaToolchain | Nvcc | None, compiler: Compiler, work: Work
) -> tuple[Path, ...]:
    """Build the library or object file of a request in `work.dir`. Return the user's files on which it depends."""
    assert request.host is not None
    check_cubins(request.host)
    check_has_exports(request)
    build = HostBuild(request=request, host=request.host, cuda=cuda, compiler=compiler, work=work)
    build = replace(build, exports=choose_host_exports(request), library_dirs=library_include_dirs(cuda))
    if _probably_launches(request.host):
        build = replace(build, launcher=_find_launcher(build))
    build, device_headers = _with_device_code(build)
    check_embeds(build.host, [Path(path) for path in request.include_dirs], request.name if request.pieces else "")
    write_host_sources(build)
    link_flags = link.usable_link_flags(build.host.link_flags, cuda, compiler)
    if isinstance(cuda, Nvcc):
        build = with_templates(build, cuda)
        if any(unit.is_relocatable for unit in build.host.units):
            link_flags = (*link_flags, *map(str, filter(None, (device_runtime(cuda),))))
    build = replace(build, link_flags=link_flags)
    if build.host.is_torch:
        check_conditions(build)
    build = _build_object(build) if build.host.is_object else _build_library(build)
    dependencies = tuple(sorted({*device_headers, *_files_read(build)}))
    _remove_temporaries(build)
    return dependencies


def _find_launcher(build: HostBuild) -> Path:
    """Return the object file of the launcher, or of `torch_runtime` for C++ for torch."""
    return _find_object("torch_runtime" if build.host.is_torch else "launcher", build)


def _find_object(name: NativeName, build: HostBuild) -> Path:
    return find_objects((name,), build.request.settings)[0]


def _probably_launches(host: HostSource) -> bool:
    """Return whether the library probably needs the launcher or `torch_runtime`. The first link then has it."""
    if host.is_object:
        return False
    if host.is_torch:
        return True
    texts = [text for unit in host.units for _, text in unit.pieces]
    return bool(host.cubins or host.objects) or any("/cuda/" in text or "jitload" in text for text in texts)


def _with_device_code(build: HostBuild) -> tuple[HostBuild, tuple[Path, ...]]:
    """Compile the request's device code, if there is any.

    Return the build with the cubin, and the headers that were read.
    """
    request, host = build.request, build.host
    if not request.pieces:
        return build, ()
    assert isinstance(build.cuda, CudaToolchain)
    from jitload.kernels.compilation import compile_device_code

    (compiled,) = compile_device_code(request, build.cuda)
    cubins = (*host.cubins, (request.name, compiled.cubin.data))
    return replace(build, host=host._replace(cubins=cubins)), compiled.headers


def _run(build: HostBuild, steps: Sequence[Step]) -> None:
    request, work_dir = build.request, build.work.dir
    write_ninja(work_dir, steps)
    ninja = find_ninja(request.settings)
    try:
        run_ninja(ninja, work_dir, name=request.name, level=logging.WARNING)
    except CompileError as error:
        hint = _hint(error.log, build)
        if isinstance(build.cuda, Nvcc) and is_of_nvcc(error, nvcc_compile_steps(build)):
            raise nvcc_failure(error, build.cuda, hint) from None
        error.hint = hint or error.hint
        raise


def _hint(log: str, build: HostBuild) -> str:
    texts = [text for unit in build.host.units for _, text in unit.pieces]
    if build.host.is_torch and (hint := torch_hint(log, texts)):
        return hint
    flags = [flag for unit in build.host.units for flag in (*build.host.flags, *unit.flags)]
    if "/tvm/ffi/" in log and (dialect := old_dialect(flags)):
        return f"The headers of tvm-ffi need C++17 or newer: leave {dialect} out."
    if "requires separate compilation mode" in log:
        return "Kernels that launch kernels need extra_cuda_cflags=['-rdc=true'] and extra_ldflags=['-lcudadevrt']."
    header = header_hint(log, build.cuda.major if build.cuda else 13)
    hint = header or target_hint(log) or type_hint(log) or missing_cubin_hint(log)
    return hint or export_hint(log, build.exports, build.request)


# ---- a library ---------------------------------------------------------------------------------------------------


def _build_library(build: HostBuild) -> HostBuild:
    """Compile and link a library. Return the build with the options and objects that were finally used."""
    specs = _header_specs(build)
    build, tried_link = _compile(build, specs)
    build = _with_wrapper(build)
    prefix = objects.LAUNCHER_PREFIX.encode()
    if build.launcher is None and any(prefix in path.read_bytes() for path in build.unit_objects):
        build = replace(build, launcher=_find_launcher(build))
    if tried_link is None or tried_link.inputs != link_step(build).inputs or not build.product.exists():
        _link(build)
    symbols = read_dynamic_symbols(build.product.read_bytes())
    exported = {*symbols.defined}
    shown = [objects.show_exports(path) for path in build.unit_objects if objects.find_exports(path) - exported]
    if any(shown):
        _link(build)
        symbols = read_dynamic_symbols(build.product.read_bytes())  # the linker may have dropped hidden functions
    build = _link_cuda(build, symbols.undefined)
    _precompile_later(dict.fromkeys(specs.values()), build)
    return build


def _with_wrapper(build: HostBuild) -> HostBuild:
    """Write the wrapper of the functions of plain types, if there are any, and return the build with the wrapper.

    The types are read from the compiled objects. A function may turn out to have a type of tvm-ffi under another name.
    tvm-ffi's macro then exports the function, and the sources are compiled again.
    """
    if not has_typed(build.exports):
        return build
    functions = read_typed_functions(build.exports, build.unit_objects)
    if ffi_names := {name for name, function in functions.items() if function is None}:
        exports = tuple(e._replace(is_typed=e.is_typed and e.name not in ffi_names) for e in build.exports)
        build = replace(build, exports=exports)
        write_host_sources(build)
        _run(build, compile_steps(build))
        functions = read_typed_functions(build.exports, build.unit_objects)
    if not functions:
        return build
    write_host_wrapper(build.request, filter(None, functions.values()), build.work.dir)
    return replace(build, runtime=_find_object("runtime", build))


def _link(build: HostBuild) -> None:
    _run(build, (*compile_steps(build), link_step(build)))


def _link_cuda(build: HostBuild, undefined: Sequence[str]) -> HostBuild:
    """Link the library again if it calls undefined CUDA functions. Return the build that was linked last.

    Functions of the driver are looked up at run time, by C code that is added to the library.
    """
    functions = link.missing_driver_calls(undefined, build.cuda, build.link_flags)
    libraries = link.missing_libraries(undefined, build.cuda, build.link_flags, build.request.name)
    if functions:
        build = with_driver_calls(build, functions)
    if libraries:
        build = replace(build, link_flags=(*build.link_flags, *libraries))
    if functions or libraries:
        _link(build)
    return build


# ---- the compile, with precompiled headers -----------------------------------------------------------------------


def _header_specs(build: HostBuild) -> dict[str, precompiled.HeaderSpec]:
    """Return the precompiled header that each source file could use, by the file's name."""
    fixed_flags = (STANDARD, *FLAGS), include_flags(build.cuda.include_dirs if build.cuda else (), ())
    compiler, cache_dir, specs = build.compiler, build.work.cache_dir, {}
    for unit in build.host.units:
        flags = (*unit.flags, *build.host.flags)
        if template := build.templates.get(unit.file):
            assert isinstance(build.cuda, Nvcc)
            includes = precompiled.PRELUDE if needs_prelude(unit, build.exports) else ()
            spec = precompiled.nvcc_header_spec(
                template, includes, nvcc=build.cuda, compiler=compiler, cache_dir=cache_dir
            )
        else:
            spec = precompiled.header_spec(unit, flags, compiler=compiler, fixed_flags=fixed_flags, cache_dir=cache_dir)
        if spec:
            specs[unit.file] = spec
    return specs


def _compile(build: HostBuild, specs: Mapping[str, precompiled.HeaderSpec]) -> tuple[HostBuild, Step | None]:
    """Compile with the precompiled headers that exist.

    If the compile fails, or if a precompiled header is damaged, compile again without precompiled headers. Errors
    therefore come from the source alone.

    Returns:
        The build with the precompiled headers that were used, and the link step that was tried (None if none was).
    """
    cache_dir, settings, dirs = build.work.cache_dir, build.request.settings, [*map(str, _search_dirs(build))]
    candidates = {file: precompiled.find_precompiled(spec, cache_dir, settings, dirs) for file, spec in specs.items()}
    headers = {file: header for file, header in candidates.items() if header}
    if not headers:
        return build, _compile_and_try_link(build)
    distinct = {header.path: header for header in headers.values()}
    checks = {path: run_in_background(header.is_intact) for path, header in distinct.items()}
    with_headers, failure = replace(build, precompiled=headers), None
    try:
        tried_link = _compile_and_try_link(with_headers)
    except CompileError as error:
        failure = error
    damaged = [distinct[path] for path, check in checks.items() if not check.result()]
    for header in damaged:
        precompiled.remove_damaged(header.entry)
    if failure is None and not damaged:
        return with_headers, tried_link
    tried_link = _compile_and_try_link(build)
    for file in headers if failure and not damaged else ():
        precompiled.record_failure(specs[file].key, cache_dir, str(failure))
    return build, tried_link


def _compile_and_try_link(build: HostBuild) -> Step | None:
    """Compile. Also link, in the same run of ninja, if the link probably needs no further objects or libraries.

    Returns:
        The link step, even if the link failed, or None if no link was tried.
    """
    attempt, host = None, build.host
    if not has_typed(build.exports) and not host.link_flags:  # typed functions need a wrapper, which is written later
        flags = [flag for unit in host.units if not unit.is_mixed for flag in (*unit.flags, *host.flags)]
        attempt = link_step(build, link.fast_linker(build.compiler, flags, build.work.cache_dir))
    try:
        _run(build, (*compile_steps(build), *((attempt,) if attempt else ())))
    except CompileError as error:
        if attempt is None or " -shared " not in " ".join(error.command):
            raise
    return attempt


def _precompile_later(specs: Iterable[precompiled.HeaderSpec], build: HostBuild) -> None:
    """Start to precompile headers on a new thread. Python waits for the thread at exit."""

    def start() -> None:
        for spec in specs:
            precompiled.start_precompiling(spec, build.work.cache_dir, build.request.settings)

    threading.Thread(target=start, name="jitload-precompile", daemon=False).start()


# ---- an object ---------------------------------------------------------------------------------------------------


def _build_object(build: HostBuild) -> HostBuild:
    """Compile, and merge all objects into one object file.

    Undefined symbols may remain, because the user links the object file with other files that define them.
    """
    _run(build, compile_steps(build))
    build = _with_wrapper(build)
    if build.runtime:
        _run(build, compile_steps(build))
    for path in build.unit_objects:
        objects.show_exports(path)
    paths = [*object_paths(build), *map(Path, build.host.objects)]
    undefined = objects.read_undefined_symbols(paths)
    if functions := link.missing_driver_calls(undefined, build.cuda, build.link_flags):
        build = with_driver_calls(build, functions)
    if any(name.startswith(objects.LAUNCHER_PREFIX) for name in undefined):
        build = replace(build, launcher=_find_launcher(build))
    _run(build, (*compile_steps(build), merge_step(build)))
    if repeated := [path for path in (build.runtime, build.launcher) if path]:  # other objects may contain them, too
        objects.make_weak(build.product, objects.read_global_symbols(repeated))
    return build


def _remove_temporaries(build: HostBuild) -> None:
    """Remove nvcc's temporary files. The preprocessed sources alone take megabytes."""
    for unit in build.host.units:
        for path in build.work.dir.glob(f"{unit.file}.*") if unit.is_mixed else ():
            if path.suffix not in (".o", ".d"):
                path.unlink()


# ---- dependencies ------------------------------------------------------------------------------------------------


def _search_dirs(build: HostBuild) -> tuple[Path, ...]:
    """Return the user's include directories, in search order."""
    request = build.request
    return search_dirs(tuple(map(Path, request.include_dirs)), build.user_flags, request.settings.environment)


def _files_read(build: HostBuild) -> Iterator[Path]:
    """Yield the paths of the files on which the cache entry of a build depends.

    These are the files that the build read, except files whose versions are in the cache key. The path of a missing
    file is included if a file there would be read in place of one that was read.
    """
    host = build.host
    versioned_dirs = (INCLUDE_DIR, *tvm_ffi_include_dirs(), *(build.cuda.include_dirs if build.cuda else ()))
    dirs = _search_dirs(build)
    texts = [text for unit in host.units for _, text in unit.pieces]
    read = [Path(file.path) for header in build.precompiled.values() for file in header.entry.dependencies]
    for unit in host.units:
        is_of_nvcc = unit.is_mixed and unit.file not in build.templates  # nvcc's depfiles do not double a `$`
        for path in build.work.dir.glob(f"{unit.file}*.d"):
            depfile = path.read_text(errors="surrogateescape")
            read += read_depfile(depfile.replace("$", "$$") if is_of_nvcc else depfile)
    yield from headers_to_record(texts, read, dirs, versioned_dirs, cache_dir=build.work.cache_dir)
    yield from files_in_options([*build.user_flags, *host.link_flags])
    yield from map(Path, host.objects)
    if not host.is_object:
        yield from link.linked_libraries(host.link_flags)
