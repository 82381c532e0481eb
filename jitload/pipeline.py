"""The order of the stages, and nothing else: from a request to an entry of the cache, and from there to a module."""

from __future__ import annotations

import difflib
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitload.build import COMPILE_FLAGS, RUNTIME_FLAGS, compile_step, link_step, run_ninja, write_ninja
from jitload.cache import Entry, Recipe, Work, claim_entry, find_entry, open_cache
from jitload.errors import LaunchSpecError
from jitload.identity import compiler_identity, own_identity
from jitload.request import Request
from jitload.toolchain import Compiler, Kit, find_compiler, find_kit, find_ninja, own_include_dir, tvm_ffi_include_dirs

if TYPE_CHECKING:
    from jitload.codegen import Export
    from jitload.kernels import Compiled
    from jitload.model import Kernel

_RUNTIME_SOURCES = {"launch": RUNTIME_FLAGS, "device": COMPILE_FLAGS, "explain": COMPILE_FLAGS}


def build(request: Request, *, verbose: bool = False) -> Entry:
    """Return the cache entry that holds the library for a request, building it if there is none."""
    kit = find_kit(request.settings)
    compiler = find_compiler(request.settings)
    cache_dir = open_cache(request.settings)
    recipe = library_recipe(request, kit, compiler_identity(compiler, cache_dir))
    if entry := find_entry(cache_dir, recipe, request.settings):
        return entry
    _in_background(_import_what_follows)
    with claim_entry(cache_dir, recipe, request.settings) as work:
        if work.entry:
            return work.entry
        runtime = _in_background(lambda: build_runtime(request, compiler, cache_dir))
        compiled = compile_archs(request, kit)
        write_sources(request, compiled, work.dir)
        build_library(request, compiled, compiler, runtime.result().product, work, verbose=verbose)
        return work.publish(f"{request.slug}.so", _headers(compiled))


def library_recipe(request: Request, kit: Kit, compiler: str) -> Recipe:
    """Return everything that decides what the library will be."""
    functions = ("all",) if request.functions is None else tuple(f"{name}={spec!r}" for name, spec in request.functions)
    return Recipe(
        name=request.slug,
        parts=(
            ("kind", "device"),
            ("module", request.name),
            ("labels", tuple(label for label, _ in request.pieces)),
            ("sources", tuple(text for _, text in request.pieces)),
            ("functions", functions),
            ("archs", request.archs),
            ("options", request.options),
            ("include_dirs", request.include_dirs),
            ("nvrtc", kit.identity),
            ("compiler", compiler),
            ("jitload", own_identity()),
        ),
    )


def compile_archs(request: Request, kit: Kit) -> tuple[Compiled, ...]:
    """Compile the device code for each architecture."""
    from jitload.kernels import DeviceSource, compile_kernels, same_layout

    named = [launch.kernel for _, launch in request.functions or () if launch.kernel]
    source = DeviceSource(
        name=request.name,
        pieces=request.pieces,
        options=request.options,
        include_dirs=tuple(map(Path, request.include_dirs)),
        kernels=tuple(dict.fromkeys(named)),
    )
    compiled = tuple(compile_kernels(source, arch, kit) for arch in request.archs)
    for other in compiled[1:]:
        if not same_layout(compiled[0].cubin, other.cubin):
            raise LaunchSpecError(
                f"the kernels of {compiled[0].cubin.arch} and {other.cubin.arch} take different parameters",
                hint="Build one library for each architecture, or give the kernels one signature.",
            )
    return compiled


def write_sources(request: Request, compiled: Sequence[Compiled], work_dir: Path) -> None:
    """Write what the library is built from: the device code, for a look, the cubins, and the wrapper."""
    from jitload.arch import capability_of
    from jitload.codegen import EmbeddedImage, Wrapper, render_wrapper

    images = []
    for one in compiled:
        capability, suffix = capability_of(one.cubin.arch)
        name = f"{request.slug}_{one.cubin.arch}"
        images.append(EmbeddedImage(name=name, file=f"{one.cubin.arch}.cubin", capability=capability, suffix=suffix))
        (work_dir / f"{one.cubin.arch}.cubin").write_bytes(one.cubin.data)
    wrapper = Wrapper(
        name=request.name,
        archs=request.archs,
        images=tuple(images),
        exports=choose_exports(request, compiled[0]),
        variables=compiled[0].cubin.variables,
    )
    for number, (_, text) in enumerate(request.pieces):
        (work_dir / f"source{number}.cu").write_text(text)
    (work_dir / "wrapper.cc").write_text(render_wrapper(wrapper))


def build_library(request: Request, compiled: Sequence[Compiled], compiler: Compiler, runtime: Path, work: Work, *, verbose: bool) -> None:
    """Compile the wrapper and link it with the runtime."""
    flags = (*COMPILE_FLAGS, *_include_flags())
    cubins = tuple(f"{one.cubin.arch}.cubin" for one in compiled)
    steps = (
        compile_step(compiler.command, flags, "wrapper.cc", "wrapper.o", reads=cubins),
        link_step(compiler.command, ("wrapper.o", str(runtime)), f"{request.slug}.so"),
    )
    write_ninja(work.dir, steps)
    run_ninja(find_ninja(request.settings), work.dir, name=request.name, verbose=verbose)


def build_runtime(request: Request, compiler: Compiler, cache_dir: Path) -> Entry:
    """Return the entry with the part that all libraries share, compiled once for a compiler."""
    recipe = Recipe(
        name="runtime",
        parts=(
            ("kind", "runtime"),
            ("compiler", compiler_identity(compiler, cache_dir)),
            ("jitload", own_identity()),
        ),
    )
    if entry := find_entry(cache_dir, recipe, request.settings):
        return entry
    with claim_entry(cache_dir, recipe, request.settings) as work:
        if work.entry:
            return work.entry
        objects = []
        steps = []
        for name, flags in _RUNTIME_SOURCES.items():
            source = str(own_include_dir() / f"{name}.cc")
            steps.append(compile_step(compiler.command, (*flags, *_include_flags()), source, f"{name}.o"))
            objects.append(f"{name}.o")
        steps.append(compile_runtime_step(compiler, tuple(objects)))
        write_ninja(work.dir, steps)
        run_ninja(find_ninja(request.settings), work.dir, name="jitload's runtime")
        return work.publish("runtime.o")


def compile_runtime_step(compiler: Compiler, objects: tuple[str, ...]) -> Any:
    """Return the step that joins the runtime's objects to one."""
    from jitload.build import Step

    command = (*compiler.command, "-r", "-nostdlib", *objects, "-o", "runtime.o")
    return Step(output="runtime.o", command=command, inputs=objects)


def _include_flags() -> tuple[str, ...]:
    return tuple(f"-I{path}" for path in (own_include_dir().parent, *tvm_ffi_include_dirs()))


def _headers(compiled: Sequence[Compiled]) -> tuple[Path, ...]:
    return tuple(sorted({path for one in compiled for path in one.headers}))


# ---- which kernel under which name -----------------------------------------------------------------------------


def choose_exports(request: Request, compiled: Compiled) -> tuple[Export, ...]:
    """Return the functions of the library: every kernel, or those that `functions=` names.

    Raises:
        LaunchSpecError: A name fits no kernel.
    """
    from jitload.codegen import Export
    from jitload.launch import Launch
    from jitload.exports import export_names

    by_name = export_names(compiled.cubin.kernels)
    docs = {candidate.name: candidate.doc for candidate in compiled.candidates}
    functions = request.functions
    if functions is None:
        if not by_name:
            raise _no_kernels(compiled)
        functions = tuple((name, Launch()) for name in by_name)
    exports = []
    for name, launch in functions:
        kernel = _kernel_for(name, launch, compiled, by_name)
        doc = launch.doc if launch.doc is not None else docs.get(kernel.name.partition("<")[0].partition("(")[0], "")
        exports.append(Export(name=name, kernel=_renamed(name, kernel, launch), launch=launch, doc=doc))
    return tuple(exports)


def _kernel_for(name: str, launch: Any, compiled: Compiled, by_name: dict[str, Kernel]) -> Kernel:
    if launch.kernel:
        symbol = compiled.symbols[launch.kernel]
        return next(kernel for kernel in compiled.cubin.kernels if kernel.symbol == symbol)
    if name in by_name:
        return by_name[name]
    templates = {c.name.rpartition("::")[2]: c.name for c in compiled.candidates if c.is_template}
    if name in templates:
        raise LaunchSpecError(
            f"{templates[name]!r} is a template, and nothing instantiates it",
            kernel=name,
            hint=f'Say which instantiation: functions={{"{name}": Launch(kernel="{templates[name]}<…>")}}',
        )
    near = difflib.get_close_matches(name, by_name, n=1)
    known = ", ".join(by_name) or "none"
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise LaunchSpecError(f"no kernel {name!r}", field="functions", hint=f"{hint}The kernels are: {known}")


def _no_kernels(compiled: Compiled) -> LaunchSpecError:
    templates = ", ".join(candidate.name for candidate in compiled.candidates if candidate.is_template)
    hint = "Write a __global__ function."
    if templates:
        hint = f'It has templates ({templates}): functions={{"f": Launch(kernel="{templates.split(", ")[0]}<…>")}}'
    return LaunchSpecError("the source has no kernel", field="functions", hint=hint)


def _renamed(name: str, kernel: Kernel, launch: Any) -> Kernel:
    """Return the kernel with the parameter names that `Launch.params` gives."""
    from dataclasses import replace

    if launch.params is None:
        return kernel
    if len(launch.params) != len(kernel.parameters):
        count = len(kernel.parameters)
        raise LaunchSpecError(f"names {len(launch.params)} parameters, but {kernel} has {count}", kernel=name, field="params")
    pairs = zip(kernel.parameters, launch.params, strict=True)
    return replace(kernel, parameters=tuple(replace(p, name=given) for p, given in pairs))


# ---- while NVRTC works -----------------------------------------------------------------------------------------


def _in_background(work: Callable[[], Any]) -> Future[Any]:
    """Run something on a thread of its own: NVRTC lets go of the GIL while it compiles."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  handed to whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, name="jitload-build", daemon=True).start()
    return future


@contextmanager
def _without_collections() -> Iterator[None]:
    """Hold back the garbage collector during imports.

    Right after `import torch` the next few thousand objects, whoever makes them, set off a full collection over all
    that torch made: 70 ms of a first build's 170.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _import_what_follows() -> None:
    with _without_collections():
        from jitload.codegen import load_template

        load_template("wrapper.cc.jinja")
        import ninja.ninja_syntax  # noqa: F401
