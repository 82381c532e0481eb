"""The public functions: they compile and load inline source, source files and built libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from jitload.pipeline import build_request, load_request
from jitload.request.arguments import (
    Call,
    Functions,
    PathLike,
    Paths,
    Texts,
    absolute_path,
    check_flags,
    read_instrumentation,
    read_kernels,
    read_options,
    read_texts,
)
from jitload.request.cubins import CubinLike
from jitload.request.request import make_request
from jitload.request.sources import Sources, file_sources, inline_sources, label_pieces
from jitload.request.tune import read_tuned
from jitload.tracebacks import ends_at_caller

if TYPE_CHECKING:
    from jitload.loader.module import Module
    from jitload.model import Cubin


@ends_at_caller
def load_inline(
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
    fast_compile: bool = False,
    gpu_check: bool | None = None,
    isolate: bool | None = None,
    tuned: Any = None,
    verbose: bool = False,
) -> Module:
    """Compile CUDA source, or find it compiled in the cache, and return its kernels as typed functions.

    Hand-written C++ is compiled as by `tvm_ffi.cpp.load_inline`, and the module has the functions that the C++ exports.

    Args:
        name: The module's name, for messages and file names.
        cuda_sources: CUDA C++ as one source, or as several that are compiled together. It contains kernels,
            hand-written C++ for the host compiler, or both. C++ that launches kernels with `<<<…>>>` is compiled by
            nvcc.
        cpp_sources: C++ for the host compiler, as one source or several. The kernels in `cuda_sources` are then
            embedded as a cubin. The C++ launches them with `TVM_FFI_EMBED_CUBIN(<name>)`, where `<name>` is the
            module's name.
        functions: The functions to export. For kernels, pass a name, several names, or a mapping from each exported
            name to a `Launch`, a list of `Launch` records, or a docstring. If the value is a list, each call launches
            the first kernel that fits the dtypes of the tensors. None exports every kernel, and each call passes grid
            and block: `mod.f[grid, block](…)`. For hand-written C++, pass a name, several names, or a mapping from each
            name to a docstring or a `Launch`. None exports only the functions that the C++ itself exports.
        embed_cubin: A mapping from names to cubins. A cubin is bytes, a path, or the result of `compile_cubin` or of
            Triton. C++ launches the kernels of a cubin with `TVM_FFI_EMBED_CUBIN(name)`. If there is no source, the
            kernels become functions of the module.
        arch: `"native"` (the current GPU), `"sm_90a"`, `"cpu"`, or several; each device runs the code that suits it.
            `"compute_80"` is PTX, which the driver compiles for this and later GPUs.
            On a machine without a GPU, `"native"` is the value of `JITLOAD_ARCH`, or else the CPU.
        extra_cflags: Options for the host compiler, which also compiles kernels for the CPU.
        extra_cuda_cflags: Options for kernels in nvcc's spelling, such as `["--use_fast_math", "-DN=4"]`.
        extra_ldflags: Options for linking hand-written C++.
        extra_include_paths: Directories to search for headers.
        backend: None or `"cuda"`.
        kind: What `cuda_sources` contains, if the source does not show it: `"device"` (kernels), `"host"` (C++ that
            launches cubins) or `"mixed"` (kernels together with the C++ that launches them).
        build_directory: A directory to which the library is copied as `<name>.so`.
        keep_module_alive: Whether the library stays loaded when the module is deleted.
        sanitize: `"address"`, `"undefined"`, `"race"` or several, for kernels on the CPU. An access outside a tensor or
            outside shared memory then raises an error, or undefined behaviour, or a data race. The error names the
            kernel, block, thread and line.
        debug: Compile kernels for a debugger; on the CPU with `-g -O0`.
        fast_compile: Compile large kernels for GPUs faster, to slower code, for tests of their results. This is
            `--Ofast-compile=mid` in `extra_cuda_cflags`, where another value of the option takes precedence.
        gpu_check: Whether NVRTC, if it is installed, also checks kernels that are built for the CPU alone. The check
            rejects code that a GPU could not run. The default is `JITLOAD_CPU_GPU_CHECK`, or True if that is not set.
        isolate: Whether NVRTC runs in a child process, so that a crash of NVRTC raises a CompileError. The default is
            `JITLOAD_ISOLATE`, or False if that is not set.
        tuned: The file of measurements that chooses among the variants of a `Launch(tune=…)`: a path, a resource of a
            package (`"my_package:softmax.json"`), or a `Tuning`.
        verbose: Log the build to the logger `jitload` at level INFO: the stages with their durations, the commands with
            their output, and whether the library was in the cache. If the program does not configure `logging`, the
            messages go to standard error.

    Returns:
        A `Module`. An identical call returns the same object, unless `build_directory` is given or `keep_module_alive`
        is False.

    Raises:
        CompileError: A compiler rejected the source.
        SignatureError: The parameters of a kernel cannot be read.
        LaunchSpecError: `functions` does not match the source.
        ToolchainError: A tool or an architecture is missing.
        CacheError: The cache cannot be read, written or trusted.
        LoadError: The library cannot be loaded.

    Example:
        `mod = load_inline("vec", cuda_sources=text, functions={"add": Launch(grid="ceil_div(n, 256)", block=256)})`
    """
    check_flags(debug=debug, gpu_check=gpu_check, isolate=isolate, keep_module_alive=keep_module_alive, verbose=verbose)
    texts = inline_sources(name, cuda_sources, cpp_sources, embed_cubin)
    options = read_options(
        extra_cflags, extra_cuda_cflags, extra_ldflags, extra_include_paths, backend, fast_compile=fast_compile
    )
    checks, rows = read_instrumentation(sanitize, debug=debug), read_tuned(tuned)
    call = Call(name, texts, "module", functions, options, arch, kind, checks, gpu_check, isolate, rows)
    return load_request(make_request(call), build_directory, keep_module_alive=keep_module_alive, verbose=verbose)


@ends_at_caller
def build_inline(
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
    fast_compile: bool = False,
    gpu_check: bool | None = None,
    isolate: bool | None = None,
    tuned: Any = None,
    verbose: bool = False,
) -> str:
    """Compile as `load_inline` does, and return the library's path. Nothing is loaded, and no GPU is needed.

    All arguments except `output` are described under `load_inline`.

    Args:
        name: The module's name.
        output: The path to copy the library to. If `build_directory` is given, a relative path starts there. If the
            path ends with `.o`, the output is an object file of hand-written C++, to be linked into a library of your
            own.

    Returns:
        The path `output`, if it was passed. Without `output`, the path is `<build_directory>/<name>.so`. Without both
        arguments, it is the path of the library in the cache.

    Example:
        `path = build_inline("vec", cuda_sources=text, arch=("sm_80", "sm_90a"), output="vec.so")`
    """
    check_flags(debug=debug, gpu_check=gpu_check, isolate=isolate, verbose=verbose)
    texts = inline_sources(name, cuda_sources, cpp_sources, embed_cubin)
    options = read_options(
        extra_cflags, extra_cuda_cflags, extra_ldflags, extra_include_paths, backend, fast_compile=fast_compile
    )
    checks, rows = read_instrumentation(sanitize, debug=debug), read_tuned(tuned)
    call = Call(name, texts, "library", functions, options, arch, kind, checks, gpu_check, isolate, rows)
    return build_request(make_request(call), build_directory, output, verbose=verbose)


@ends_at_caller
def load(
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
    fast_compile: bool = False,
    gpu_check: bool | None = None,
    isolate: bool | None = None,
    tuned: Any = None,
    verbose: bool = False,
) -> Module:
    """Compile source files as `load_inline` compiles sources, and return their kernels as typed functions.

    Arguments that are not listed here are described under `load_inline`.

    Args:
        name: The module's name.
        sources: Source files. The suffix of a file says what the file contains: CUDA C++ (`.cu`, `.cuh`), C++ or C
            (`.cpp`, `.cc`, `.cxx`, `.c`), object code (`.o`, `.obj`, or `.a` for an archive), or a cubin (`.cubin`). A
            cubin is embedded under its file name without the suffix. The directories of the files are searched for
            headers.
        cuda_files: More files, treated like `sources`. tvm-ffi's argument of this name is for CUDA files.
        cpp_files: More files, treated like `sources`. tvm-ffi's argument of this name is for C++ files.

    Example:
        `mod = load("norms", sources=["layer_norm.cu"])`
    """
    check_flags(debug=debug, gpu_check=gpu_check, isolate=isolate, keep_module_alive=keep_module_alive, verbose=verbose)
    files = file_sources(sources, cuda_files, cpp_files, embed_cubin=embed_cubin)
    options = read_options(
        extra_cflags, extra_cuda_cflags, extra_ldflags, extra_include_paths, backend, fast_compile=fast_compile
    )
    checks, rows = read_instrumentation(sanitize, debug=debug), read_tuned(tuned)
    call = Call(name, files, "module", functions, options, arch, kind, checks, gpu_check, isolate, rows)
    return load_request(make_request(call), build_directory, keep_module_alive=keep_module_alive, verbose=verbose)


@ends_at_caller
def build(
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
    fast_compile: bool = False,
    gpu_check: bool | None = None,
    isolate: bool | None = None,
    tuned: Any = None,
    verbose: bool = False,
) -> str:
    """Compile source files as `build_inline` compiles sources, and return the library's path.

    The arguments are described under `load`, `build_inline` and `load_inline`.

    Example:
        `path = build("norms", sources="layer_norm.cu", arch="sm_90a")`
    """
    check_flags(debug=debug, gpu_check=gpu_check, isolate=isolate, verbose=verbose)
    files = file_sources(sources, cuda_files, cpp_files, embed_cubin=embed_cubin)
    options = read_options(
        extra_cflags, extra_cuda_cflags, extra_ldflags, extra_include_paths, backend, fast_compile=fast_compile
    )
    checks, rows = read_instrumentation(sanitize, debug=debug), read_tuned(tuned)
    call = Call(name, files, "library", functions, options, arch, kind, checks, gpu_check, isolate, rows)
    return build_request(make_request(call), build_directory, output, verbose=verbose)


@ends_at_caller
def load_module(path: PathLike, *, keep_module_alive: bool = True) -> Module:
    """Load a library that was built earlier. This needs no compiler and no NVRTC.

    A GPU is needed only to launch kernels on the GPU.

    Args:
        path: The path of the library.
        keep_module_alive: Whether the library stays loaded when the module is deleted.

    Raises:
        LoadError: The file does not exist or cannot be loaded.

    Example:
        `load_module("vec.so").add_one(x, y)`
    """
    # MKL, which importing torch loads, ends a process whose working directory was removed. `absolute_path` therefore
    # comes first: without a working directory, it raises an error for a relative path.
    library_path = absolute_path(path, "path")

    from jitload.loader.module import check_is_library, list_exports, load_library

    check_is_library(library_path)
    module = load_library(library_path, keep_module_alive=keep_module_alive)
    # A library that a user has linked may contain kernels and also hand-written C++, whose functions are listed here.
    list_exports(module, library_path)
    return module


@ends_at_caller
def compile_cubin(
    source: Texts | bytes | bytearray | memoryview,
    *,
    name: str = "kernel",
    arch: str = "native",
    kernels: Sequence[str] = (),
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_include_paths: Paths | None = None,
    isolate: bool | None = None,
) -> Cubin:
    """Compile CUDA source to machine code for one architecture. Nothing is cached.

    PTX and LTO-IR are compiled by nvJitLink. From a fatbin, the machine code for `arch` is returned.
    If the fatbin has no such code, or if compiler options are given, the fatbin's PTX is compiled.

    Without CUDA source, the parameter types of `extern "C"` kernels are unknown. Functions for such kernels need a
    signature: `Launch(signature="(float* x, int n)")`.

    Args:
        source: CUDA C++ as one source or several; PTX as str or bytes; LTO-IR or a fatbin as bytes.
        name: The name of the source in messages.
        arch: One architecture, such as `"native"` or `"sm_90a"`.
        kernels: Template instantiations and overloads to compile, such as `["scale<float>"]`; only for CUDA C++.
        extra_cuda_cflags: Compiler options.
        extra_include_paths: Directories to search for headers.
        isolate: Whether NVRTC runs in a child process, so that a crash raises a CompileError; only for CUDA C++. The
            default is `JITLOAD_ISOLATE`, or False if that is not set.

    Returns:
        A `Cubin`: the machine code, and each kernel's parameters, registers and memory in bytes.

    Raises:
        CompileError: NVRTC or the linker rejected the source.
        LaunchSpecError: The source has neither device code nor an `#include`.
        ToolchainError: NVRTC or the linker is missing, or does not support the architecture.

    Example:
        `compile_cubin(text, arch="sm_90a").kernels[0].registers`
    """
    from jitload.kernels.compilation import compile_cubins
    from jitload.request.options import take_archs
    from jitload.settings import read_settings
    from jitload.toolchain.arch import resolve_one_gpu_arch

    check_flags(isolate=isolate)
    if isinstance(source, bytes | bytearray | memoryview) or (isinstance(source, str) and ".version" in source):
        from jitload.kernels.ptx import compile_image, format_of

        if not isinstance(source, str) or format_of(source):
            return compile_image(source, name=name, arch=arch, flags=extra_cuda_cflags)
    pieces = label_pieces(name, read_texts(source, "source"), "source")
    options = read_options(extra_cuda_cflags=extra_cuda_cflags, extra_include_paths=extra_include_paths)
    named, exports = take_archs(options.cuda)[1], read_kernels(kernels)
    arch = resolve_one_gpu_arch(arch, read_settings(), function="compile_cubin()", option_archs=named)
    call = Call(name, Sources(cuda=pieces), "cubin", options=options, arch=arch, isolate=isolate, exports=exports)
    (compiled,) = compile_cubins(make_request(call))
    return compiled.cubin
