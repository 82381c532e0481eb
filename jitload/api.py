"""The public functions: arguments to a request, a request to an entry of the cache, an entry to a module."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jitload.checks import read_checks
from jitload.launch import Extent
from jitload.pipeline import build_request, load_request
from jitload.request.arguments import (
    Paths,
    Sources,
    Texts,
    absolute_path,
    file_sources,
    inline_sources,
    label_pieces,
    read_options,
    read_texts,
)
from jitload.request.cubins import CubinLike
from jitload.request.functions import Functions
from jitload.request.request import Call, make_request

if TYPE_CHECKING:
    from jitload.loader.module import Module
    from jitload.model import Cubin

PathLike = str | os.PathLike[str]


def load_inline(  # noqa: PLR0913  the keywords are upstream's
    name: str,
    *,
    cuda_sources: Texts | None = None,
    cpp_sources: Texts | None = None,
    functions: Functions | None = None,
    embed_cubin: Mapping[str, CubinLike] | None = None,
    arch: str | Sequence[str] = "native",
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Paths | None = None,
    backend: str | None = None,
    kind: Literal["device", "host", "mixed"] | None = None,
    build_directory: PathLike | None = None,
    keep_module_alive: bool = True,
    sanitize: str | Sequence[str] | None = None,
    debug: bool = False,
    verbose: bool = False,
) -> Module:
    """Compile CUDA source, or find it compiled in the cache, and return its kernels as typed functions.

    C++ written by hand is compiled as `tvm_ffi.cpp.load_inline` does it, and its functions are returned.

    Args:
        name: The module's name, for messages and file names.
        cuda_sources: CUDA C++ text, or several pieces of it that are compiled as one: kernels, or a wrapper in C++
            written by hand, which the host's compiler gets, or both with `<<<…>>>` between them, which takes nvcc.
        cpp_sources: C++ text, or several pieces, for the host's compiler. Kernels in `cuda_sources` beside it are
            embedded for it: `TVM_FFI_EMBED_CUBIN(<name>)`.
        functions: What to export: a kernel's name, several, or a mapping from exported names to `Launch` records or
            docstrings. None exports every kernel, to be launched as `mod.f[grid, block](…)`. With C++ by hand: its
            functions, with docstrings or without; None exports what it exports itself.
        embed_cubin: Cubins for the C++ to launch from, by the names in its `TVM_FFI_EMBED_CUBIN(name)`: bytes, paths
            or what `compile_cubin` or Triton returns. Without any source, functions are made of them.
        arch: `"native"` (the current GPU), `"sm_90a"`, `"cpu"`, or several; each device gets the code that suits it. On
            a machine without a GPU, `"native"` is what `JITLOAD_ARCH` says, or the CPU.
        extra_cflags: Options of the host's compiler, which compiles kernels for the CPU, too.
        extra_cuda_cflags: Options for kernels, such as `["--use_fast_math", "-DN=4"]`, written for nvcc.
        extra_ldflags: Options of the link of hand-written C++.
        extra_include_paths: Directories of headers.
        backend: None or `"cuda"`.
        kind: What `cuda_sources` is, where its text does not tell: `"device"` (kernels, for NVRTC), `"host"` (C++ that
            launches cubins) or `"mixed"` (kernels and what launches them, for nvcc).
        build_directory: Put the library there, too, as `<name>.so`.
        keep_module_alive: Keep the library loaded when the module is dropped.
        sanitize: `"address"`, `"undefined"` or both: kernels on the CPU that reach outside a tensor or outside shared
            memory, or do what C++ leaves undefined, are an error that names kernel, block, thread and line.
        debug: Compile kernels for a debugger: `-g -O0` on the CPU.
        verbose: Log what the compilers print, at level INFO of the logger `jitload`.

    Returns:
        A `Module`. An identical call returns the same one, except with `build_directory` or without
        `keep_module_alive`.

    Raises:
        CompileError: A compiler refused the source.
        SignatureError: A kernel's parameters cannot be read.
        LaunchSpecError: `functions` does not fit the source.
        ToolchainError: A tool or an architecture is missing.

    Example:
        `mod = load_inline("vec", cuda_sources=text, functions={"add": Launch(grid="ceil_div(n, 256)", block=256)})`
    """
    call = Call(
        name=name,
        sources=inline_sources(name, cuda_sources, cpp_sources=cpp_sources, embed_cubin=embed_cubin),
        makes="module",
        functions=functions,
        options=read_options(
            cflags=extra_cflags,
            cuda_cflags=extra_cuda_cflags,
            ldflags=extra_ldflags,
            include_paths=extra_include_paths,
        ),
        arch=arch,
        backend=backend,
        kind=kind,
        checks=read_checks(sanitize, debug=debug),
    )
    return load_request(make_request(call), build_directory, keep_module_alive=keep_module_alive, verbose=verbose)


def build_inline(  # noqa: D417, PLR0913  the keywords are upstream's, described once
    name: str,
    *,
    cuda_sources: Texts | None = None,
    cpp_sources: Texts | None = None,
    functions: Functions | None = None,
    embed_cubin: Mapping[str, CubinLike] | None = None,
    arch: str | Sequence[str] = "native",
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Paths | None = None,
    backend: str | None = None,
    kind: Literal["device", "host", "mixed"] | None = None,
    build_directory: PathLike | None = None,
    output: PathLike | None = None,
    sanitize: str | Sequence[str] | None = None,
    debug: bool = False,
    verbose: bool = False,
) -> str:
    """Compile as `load_inline` does, and return the library's path; nothing is loaded and no GPU is needed.

    Args:
        name: As for `load_inline`, like the other arguments not listed here.
        output: Where to put the library; a relative path is one in `build_directory`, where that is given. A name
            that ends with `.o` gets an object for a link of your own: C++ by hand is not linked for it, and a
            library may hold any number of such objects; of kernels alone, one.

    Returns:
        The path: `output`, or `<build_directory>/<name>.so`, or the library in the cache.

    Example:
        `path = build_inline("vec", cuda_sources=text, arch=("sm_80", "sm_90a"), output="vec.so")`
    """
    call = Call(
        name=name,
        sources=inline_sources(name, cuda_sources, cpp_sources=cpp_sources, embed_cubin=embed_cubin),
        makes="library",
        functions=functions,
        options=read_options(
            cflags=extra_cflags,
            cuda_cflags=extra_cuda_cflags,
            ldflags=extra_ldflags,
            include_paths=extra_include_paths,
        ),
        arch=arch,
        backend=backend,
        kind=kind,
        checks=read_checks(sanitize, debug=debug),
    )
    return build_request(make_request(call), build_directory, output, verbose=verbose)


def load(  # noqa: D417, PLR0913  the keywords are upstream's, described once
    name: str,
    *,
    sources: Paths | None = None,
    cuda_files: Paths | None = None,
    cpp_files: Paths | None = None,
    functions: Functions | None = None,
    embed_cubin: Mapping[str, CubinLike] | None = None,
    arch: str | Sequence[str] = "native",
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Paths | None = None,
    backend: str | None = None,
    kind: Literal["device", "host", "mixed"] | None = None,
    build_directory: PathLike | None = None,
    keep_module_alive: bool = True,
    sanitize: str | Sequence[str] | None = None,
    debug: bool = False,
    verbose: bool = False,
) -> Module:
    """Do as `load_inline` does, with source files.

    Args:
        name: As for `load_inline`, like the other arguments not listed here.
        sources: Files, the suffix says what each is: CUDA C++ (`.cu`, `.cuh`), C++ and C (`.cpp`, `.cc`, `.cxx`,
            `.c`), objects (`.o`), cubins to embed under their own names, or to make functions of where there is nothing
            else (`.cubin`). Messages name them, and their directories are searched for headers.
        cuda_files: More of them, under the name that upstream has for CUDA's.
        cpp_files: Likewise for C++.

    Example:
        `mod = load("norms", sources=["layer_norm.cu"])`
    """
    call = Call(
        name=name,
        sources=file_sources(sources, cuda_files, cpp_files, embed_cubin=embed_cubin),
        makes="module",
        functions=functions,
        options=read_options(
            cflags=extra_cflags,
            cuda_cflags=extra_cuda_cflags,
            ldflags=extra_ldflags,
            include_paths=extra_include_paths,
        ),
        arch=arch,
        backend=backend,
        kind=kind,
        checks=read_checks(sanitize, debug=debug),
    )
    return load_request(make_request(call), build_directory, keep_module_alive=keep_module_alive, verbose=verbose)


def build(  # noqa: PLR0913  the keywords are upstream's, described once
    name: str,
    *,
    sources: Paths | None = None,
    cuda_files: Paths | None = None,
    cpp_files: Paths | None = None,
    functions: Functions | None = None,
    embed_cubin: Mapping[str, CubinLike] | None = None,
    arch: str | Sequence[str] = "native",
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Paths | None = None,
    backend: str | None = None,
    kind: Literal["device", "host", "mixed"] | None = None,
    build_directory: PathLike | None = None,
    output: PathLike | None = None,
    sanitize: str | Sequence[str] | None = None,
    debug: bool = False,
    verbose: bool = False,
) -> str:
    """Do as `build_inline` does, with source files; see `load` for them.

    Example:
        `path = build("norms", sources="layer_norm.cu", arch="sm_90a")`
    """
    call = Call(
        name=name,
        sources=file_sources(sources, cuda_files, cpp_files, embed_cubin=embed_cubin),
        makes="library",
        functions=functions,
        options=read_options(
            cflags=extra_cflags,
            cuda_cflags=extra_cuda_cflags,
            ldflags=extra_ldflags,
            include_paths=extra_include_paths,
        ),
        arch=arch,
        backend=backend,
        kind=kind,
        checks=read_checks(sanitize, debug=debug),
    )
    return build_request(make_request(call), build_directory, output, verbose=verbose)


def load_module(path: PathLike, *, keep_module_alive: bool = True) -> Module:
    """Load a library that was built earlier. This needs no compiler, no NVRTC and no GPU; launching needs a GPU.

    Args:
        path: The library.
        keep_module_alive: Keep the library loaded when the module is dropped.

    Raises:
        LoadError: There is no such file, or it cannot be loaded here.

    Example:
        `load_module("vec.so").add_one(x, y)`
    """
    place = absolute_path(path, "path")  # before torch is imported, whose MKL ends a process without a directory

    from jitload.loader.module import list_exports, load_library

    module = load_library(place, keep_module_alive=keep_module_alive)
    list_exports(module, place)  # a user may have linked objects of kernels and of C++
    return module


def compile_cubin(  # noqa: PLR0913  the keywords of load_inline that concern the device
    source: Texts | bytes | bytearray | memoryview,
    *,
    name: str = "kernel",
    arch: str = "native",
    kernels: Sequence[str] = (),
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_include_paths: Paths | None = None,
) -> Cubin:
    """Compile CUDA source to machine code, and return it with what it says of its kernels. Nothing is cached.

    PTX and LTO-IR are compiled, too, by nvJitLink or the driver; a fatbin gives its machine code for `arch`, or is
    compiled from its PTX. Of their `extern "C"` kernels only the sizes of parameters are known:
    `load_inline(…, embed_cubin={"k": cubin}, functions={"f": Launch(signature="(int n)")})`.

    Args:
        source: CUDA C++ text, or several pieces of it; PTX as text or bytes; bytes of LTO-IR or of a fatbin.
        name: What messages call the source.
        arch: One architecture: `"native"`, `"sm_90a"`.
        kernels: Template instantiations and overloads to compile: `["scale<float>"]`; source text alone has any.
        extra_cuda_cflags: Compiler options.
        extra_include_paths: Directories of headers.

    Raises:
        CompileError: NVRTC or the linker refused the source.
        ToolchainError: There is no NVRTC or no linker, or it does not know the architecture.

    Example:
        `compile_cubin(text, arch="sm_90a").kernels[0].registers`
    """
    from jitload.cuda.compile import check_is_device_code
    from jitload.cuda.kernels import DeviceSource, compile_kernels
    from jitload.settings import read_settings
    from jitload.toolchain.arch import resolve_one_gpu_arch
    from jitload.toolchain.cuda import find_cuda_toolchain

    if isinstance(source, bytes | bytearray | memoryview) or (isinstance(source, str) and ".version" in source):
        from jitload.cuda.ptx import compile_image, format_of

        if not isinstance(source, str) or format_of(source):
            return compile_image(source, name=name, arch=arch, flags=extra_cuda_cflags)
    pieces = label_pieces(name, read_texts(source, "source"), "source")
    call = Call(
        name=name,
        sources=Sources(cuda=pieces),
        makes="cubin",
        options=read_options(cuda_cflags=extra_cuda_cflags, include_paths=extra_include_paths),
        arch=resolve_one_gpu_arch(arch, read_settings(), who="compile_cubin()"),
    )
    request = make_request(call)
    check_is_device_code(request)
    device_source = DeviceSource(
        name=name,
        pieces=pieces,
        options=request.options,
        include_dirs=tuple(map(Path, request.include_dirs)),
        kernels=read_texts(kernels, "kernels"),
    )
    return compile_kernels(device_source, request.archs[0], find_cuda_toolchain(request.settings)).cubin


def load_triton(  # noqa: PLR0913  the keywords of Triton's launches, and of load_inline
    name: str,
    kernel: Any,
    *args: Any,
    signature: Mapping[str, Any] | str | None = None,
    constexprs: Mapping[str, Any] | None = None,
    grid: Extent | Any = None,
    variants: Sequence[Any] | str | None = None,
    arch: str | Sequence[str] = "native",
    num_warps: int | None = None,
    num_stages: int | None = None,
    config: Any = None,
    build_directory: PathLike | None = None,
    keep_module_alive: bool = True,
    verbose: bool = False,
    **more: Any,
) -> Module:
    """Compile a Triton kernel, or find it compiled in the cache, and return it as a function that needs no Triton.

    The function has the kernel's name, and the kernel's run-time parameters as arguments. Each call checks what the
    machine code was specialized for: multiples of 16, ones, None.

    Args:
        name: The module's name, for messages and file names.
        kernel: A `@triton.jit` function, an autotuned one, or what a launch, `warmup()` or `extract_triton` returned.
        *args: Example arguments, instead of `signature`.
        signature: Types by parameter, in Triton's spelling: `{"x": "*fp32:16", "n": "i32"}`.
        constexprs: Values that are compiled in.
        grid: Programs in x, y and z: integers and launch expressions over run-time parameters and integer constexprs,
            such as `"ceil_div(n, BLOCK)"`, or a lambda as Triton takes it, if it can be translated to them. None leaves
            it to the call, `mod.f[grid](…)`.
        variants: Several specializations, each a mapping of constexprs and options, `[{"BLOCK": 512}, …]`, with
            `"signature"` for other types; or `"all"` configurations of an autotuned kernel. Each is a function of its
            own, `f__BLOCK_512`, and `f` launches the first one that the arguments fit.
        arch: `"native"` (the current GPU), `"sm_90"`, or several.
        num_warps: Warps of a block.
        num_stages: Stages of software pipelines.
        config: The configuration of an autotuned kernel: a `triton.Config` or a mapping.
        build_directory: Put the library there, too, as `<name>.so`.
        keep_module_alive: Keep the library loaded when the module is dropped.
        verbose: Log what the compilers print, at level INFO of the logger `jitload`.
        **more: Parameters by name, and further options of Triton's compiler.

    Returns:
        A `Module`.

    Raises:
        SignatureError: The arguments do not fit the kernel, or the machine code has other parameters than Triton says.
        LaunchSpecError: The grid does not fit the kernel.
        CompileError: Triton rejects the kernel.
        ToolchainError: A tool, Triton or an architecture is missing.

    Example:
        `load_triton("ops", add, signature={"x": "*fp32:16", "n": "i32"}, constexprs={"BLOCK": 1024},
        grid="ceil_div(n, BLOCK)").add(x, n)`
    """
    from jitload.triton.kernel import CompileSpec
    from jitload.triton.request import make_triton_request

    spec = CompileSpec.of(
        args,
        signature=signature,
        constexprs=constexprs,
        config=config,
        variants=variants,
        num_warps=num_warps,
        num_stages=num_stages,
        **more,
    )
    request = make_triton_request(name, kernel, spec, arch=arch, grid=grid)
    return load_request(request, build_directory, keep_module_alive=keep_module_alive, verbose=verbose)


def extract_triton(  # noqa: PLR0913  the keywords of Triton's launches
    kernel: Any,
    *args: Any,
    signature: Mapping[str, Any] | str | None = None,
    constexprs: Mapping[str, Any] | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
    arch: str = "native",
    config: Any = None,
    **more: Any,
) -> Cubin:
    """Compile a Triton kernel, or take a compiled one, and return its machine code with everything that a launch needs.

    If `arch` is named, this needs no GPU and no driver. Nothing is cached except in Triton's own cache.

    Args:
        kernel: A `@triton.jit` function, also within `@triton.autotune` or `@triton.heuristics`, or the compiled kernel
            that a launch or `warmup()` returned.
        *args: Example arguments, instead of `signature`: tensors (also with `device="meta"`), numbers, torch dtypes for
            aligned tensors. They are specialized as Triton does at a launch.
        signature: Types by parameter, in Triton's spelling: `"*fp32:16"` (a pointer whose address is a multiple of 16),
            `"i32"`, `"i32:16"`, `"i32:1"`, `"fp32"`, `"tensordesc<fp16[128, 64]>"`, None for a pointer that is None.
        constexprs: Values that are compiled in.
        num_warps: Warps of a block.
        num_stages: Stages of software pipelines.
        arch: One architecture: `"native"`, `"sm_90"`.
        config: The configuration of an autotuned kernel: a `triton.Config` or a mapping.
        **more: Parameters by name, and further options of Triton's compiler (`num_ctas`, `maxnreg`, `launch_pdl`, …).

    Returns:
        A `Cubin`; its attribute `triton` says how it is launched, and for which arguments.

    Raises:
        SignatureError: The arguments do not fit the kernel, or the machine code has other parameters than Triton says.
        CompileError: Triton rejects the kernel.
        ToolchainError: There is no Triton that jitload supports, or no such architecture.

    Example:
        `extract_triton(add, signature={"x": "*fp32:16", "n": "i32"}, constexprs={"BLOCK": 1024}, arch="sm_90").triton`
    """
    from jitload.triton.kernel import CompileSpec
    from jitload.triton.request import extract_cubin

    spec = CompileSpec.of(
        args,
        signature=signature,
        constexprs=constexprs,
        config=config,
        num_warps=num_warps,
        num_stages=num_stages,
        **more,
    )
    return extract_cubin(kernel, spec, arch)
