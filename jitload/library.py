"""A request in, its library in a directory out: what a miss does, stage by stage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitload.arch import CPU
from jitload.cache.store import Work
from jitload.cores import on_own_core
from jitload.errors import JitLoadError, LaunchSpecError, ToolchainError
from jitload.host_build import COMPILE_FLAGS, Step, compile_step, link_step, write_ninja
from jitload.ninja_runs import Building, NinjaRun
from jitload.request.kind import looks_like_kernels
from jitload.request.request import Request
from jitload.runtime import find_or_build_runtime, include_flags
from jitload.toolchain.cuda import CudaToolchain
from jitload.toolchain.host import Compiler, find_ninja

if TYPE_CHECKING:
    from jitload.codegen.wrapper import CpuCode
    from jitload.cpu.build import CpuProgram
    from jitload.device.kernels import DeviceSource
from jitload.model import CompiledSource


def make_library(
    request: Request, kit: CudaToolchain | None, compiler: Compiler, work: Work, *, verbose: bool
) -> Building[tuple[Path, ...]]:
    """Build the library of a request in a work directory, and return the user's headers that were read."""
    if not request.images:
        assert kit is not None
        in_background(lambda: _load_nvrtc(kit.nvrtc_path))
        check_is_device_code(request)
        import_first()
    in_background(_import_what_follows)
    runtime = in_background(lambda: find_or_build_runtime(compiler, work.cache_dir, request.settings))
    with on_own_core():
        compiled = _compile(request, kit)
        write_sources(request, compiled, work.dir)
        steps = library_steps(request, compiled, compiler, runtime.result().product)
        write_ninja(work.dir, steps)
    ninja = find_ninja(request.settings)
    yield NinjaRun(ninja=ninja, dir=work.dir, steps=steps, name=request.name, is_verbose=verbose)
    return tuple(sorted({path for one in compiled for path in one.headers}))


def _compile(request: Request, kit: CudaToolchain | None) -> tuple[CompiledSource, ...]:
    """Return the machine code of a request for each architecture, compiled or as it was given."""
    if request.images:
        from jitload.device.images import read_given

        return read_given(request)
    assert kit is not None
    return compile_archs(request, kit)


def check_is_device_code(request: Request) -> None:
    """Refuse host code: NVRTC's message on it would not say what to do.

    Raises:
        ToolchainError: The text has `<<<…>>>`, and no library is asked for: nvcc makes one of it.
        JitLoadError: The text is a wrapper in C++.
    """
    if request.is_kind_given:
        return
    from jitload.device.source import classify, find_candidates

    texts = [text for _, text in request.pieces]
    if any(".version" in text for text in texts):
        _check_is_no_ptx(request)
    if looks_like_kernels(texts) and find_candidates(texts):  # which the compile asks for, too
        return
    kind = classify(texts, has_embed_cubin=False, options=request.options, for_nvrtc=True)
    if kind == "both":
        raise ToolchainError(
            f"source {request.name!r} launches kernels with <<<…>>>, and that takes nvcc: give it to load_inline(), "
            "or leave the kernels alone in it and launch them from C++ of your own, with embed_cubin=."
        )
    if kind == "host" and not _may_be_elsewhere(texts, request.options):
        raise JitLoadError(
            f"module {request.name!r} holds no device code (no __global__, __device__ or __constant__); jitload "
            "compiles kernels and generates the C++ around them. For C++ of your own, name its functions in "
            "functions=, export them with TVM_FFI_DLL_EXPORT_TYPED_FUNC, or say kind='host'."
        )


def _check_is_no_ptx(request: Request) -> None:
    from jitload.device.ptx import format_of

    if ptx := next((label for label, text in request.pieces if format_of(text)), None):
        raise JitLoadError(
            f"{ptx} is PTX, which is no source: compile it with compile_cubin(ptx), and give what that returns in "
            "embed_cubin={'k': …} without a source beside it, functions={'f': Launch(signature='(float* x, int n)', …)}"
        )


def _may_be_elsewhere(texts: Sequence[str], options: Sequence[str]) -> bool:
    """Tell whether the kernels may be in headers that are included, or made by a macro of the options."""
    is_included = any("#include" in text for text in texts) or any("-include=" in option for option in options)
    is_made = any("__global__" in option for option in options)
    return (is_included or is_made) and not any("TVM_FFI_" in text for text in texts)


def compile_archs(request: Request, kit: CudaToolchain) -> tuple[CompiledSource, ...]:
    """Compile the device code for each architecture of a GPU."""
    from jitload.device.kernels import compile_kernels

    source = device_source(request)
    with naming_exports(request):
        compiled = tuple(compile_kernels(source, arch, kit) for arch in request.archs if arch != CPU)
    check_layouts(compiled)
    return compiled


def device_source(request: Request) -> DeviceSource:
    """Return what the compilers of device code get to know of a request."""
    from jitload.device.kernels import DeviceSource

    functions = request.functions or ()
    named = [launch.kernel for _, launch in functions if launch.kernel]
    return DeviceSource(
        name=request.name,
        pieces=request.pieces,
        options=request.options,
        include_dirs=tuple(map(Path, request.include_dirs)),
        kernels=tuple(dict.fromkeys(named)),
        signatures=tuple((launch.kernel or name, launch.signature) for name, launch in functions if launch.signature),
        cpu_flags=request.cpu_flags,
        checks=request.checks,
    )


@contextmanager
def naming_exports(request: Request) -> Iterator[None]:
    """Let an error about `Launch.kernel` name the function that has it."""
    try:
        yield
    except LaunchSpecError as error:
        functions = request.functions or ()
        error.kernel = error.kernel or next((n for n, launch in functions if launch.kernel == error.expression), "")
        raise


def check_layouts(compiled: Sequence[CompiledSource]) -> None:
    """Refuse kernels that differ from one architecture to the next: one wrapper serves all."""
    from jitload.device.kernels import layout_difference

    for other in compiled[1:]:
        if difference := layout_difference(compiled[0].cubin, other.cubin):
            raise LaunchSpecError(
                difference,
                hint="Build one library for each architecture, or declare the same kernels for all of them.",
            )


def write_sources(
    request: Request, compiled: Sequence[CompiledSource], work_dir: Path, cpu: CpuProgram | None = None
) -> None:
    """Write what the library is built from: the device code, for a look, the cubins, and the wrapper."""
    from jitload.arch import capability_of
    from jitload.codegen.wrapper import EmbeddedImage, Wrapper, render_wrapper
    from jitload.signature.exports import choose_exports

    images = []
    for one in compiled:
        capability, suffix = capability_of(one.cubin.arch)
        name = f"{request.slug}_{one.cubin.arch}"
        images.append(EmbeddedImage(name=name, file=f"{one.cubin.arch}.cubin", capability=capability, suffix=suffix))
        (work_dir / f"{one.cubin.arch}.cubin").write_bytes(one.cubin.data)
    shown, *others = compiled if cpu is None else (*compiled, cpu.compiled)
    wrapper = Wrapper(
        name=request.name,
        archs=(*(one.cubin.arch for one in compiled), *((CPU,) if cpu else ())),
        images=tuple(images),
        exports=choose_exports(request.functions, shown, others),
        variables=shown.cubin.variables,
        cpu=_cpu_code(cpu) if cpu else None,
    )
    for number, (_, text) in enumerate(request.pieces):
        (work_dir / f"source{number}.cu").write_text(text, encoding="utf-8", newline="")
    (work_dir / "wrapper.cc").write_text(render_wrapper(wrapper), encoding="utf-8")


def _cpu_code(program: CpuProgram) -> CpuCode:
    from jitload.codegen.wrapper import CpuCode

    variables = {variable.name: variable.symbol for variable in program.compiled.cubin.variables}
    return CpuCode(rows=program.rows, dynamic_shared=program.dynamic_shared, variables=variables)


def library_steps(
    request: Request, compiled: Sequence[CompiledSource], compiler: Compiler, runtime: Path
) -> tuple[Step, Step]:
    """Return the commands that compile the wrapper, with the cubins in it, and link it with the runtime."""
    flags = (*COMPILE_FLAGS, *include_flags())
    cubins = tuple(f"{one.cubin.arch}.cubin" for one in compiled)
    return (
        compile_step(compiler.command, flags, "wrapper.cc", "wrapper.o", reads=cubins),
        link_step(compiler.command, ("wrapper.o", str(runtime)), f"{request.slug}.so"),
    )


# ---- while NVRTC works -----------------------------------------------------------------------------------------


def in_background(work: Callable[[], Any]) -> Future[Any]:
    """Run something on a thread of its own: NVRTC lets go of the GIL while it compiles."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  handed to whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, name="jitload-build", daemon=True).start()
    return future


def _load_nvrtc(path: Path) -> None:
    from jitload.cuda.nvrtc import load_nvrtc

    load_nvrtc(path)


def import_first() -> None:
    """Import what a miss needs before NVRTC can start; the rest is imported while it works, when the GIL is free."""
    import jitload.device.kernels  # noqa: F401


def _import_what_follows() -> None:
    from jitload.codegen.wrapper import load_template

    load_template("wrapper.cc.jinja")
