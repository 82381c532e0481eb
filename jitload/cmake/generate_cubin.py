"""Compile a CUDA file to a cubin or fatbin with NVRTC, as a step of any build system.

    python -m jitload.cmake.generate_cubin --output kernel.cubin --source kernel.cu --arch sm_90a -- -DN=4
    python -m jitload.cmake.generate_cubin --output kernel.fatbin --source kernel.cu --arch sm_80,sm_90a --fatbin

Arguments after `--` are options for the compiler.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from jitload.cuda.fatbin import make_fatbin
from jitload.cuda.kernels import DeviceSource, check_is_device_code, compile_for_arch
from jitload.errors import ToolchainError
from jitload.model import CompiledSource
from jitload.request.arguments import Call, Sources, read_options, read_source_file
from jitload.request.options import names_arch
from jitload.request.request import make_request
from jitload.toolchain.cuda import find_cuda_toolchain
from jitload.utils.embed_cubin import replace_file, run_command


def generate_cubin(  # noqa: PLR0913  the arguments of the command
    source: Path,
    output: Path,
    *,
    arch: str = "native",
    is_fatbin: bool = False,
    kernels: Sequence[str] = (),
    options: Sequence[str] = (),
    include_dirs: Sequence[Path] = (),
) -> tuple[tuple[CompiledSource, ...], tuple[Path, ...]]:
    """Compile a CUDA file and write the cubin or fatbin.

    Args:
        source: The CUDA file; its directory is searched for headers as well.
        output: The file to write; its directory is created.
        arch: One architecture, or for a fatbin several: `"sm_80,sm_90a"`.
        is_fatbin: Whether to write a fatbin, even for a single architecture.
        kernels: Template instantiations and overloads to compile.
        options: Compiler options.
        include_dirs: Directories to search for headers.

    Returns:
        For each architecture, the cubin with its kernels; and the files that the output depends on: the source, its
        headers, and NVRTC.

    Raises:
        FileNotFoundError: The source does not exist.
        CompileError: NVRTC rejected the source.
        ToolchainError: NVRTC was not found, or does not know the architecture.

    Example:
        `generate_cubin(Path("kernel.cu"), Path("kernel.cubin"), arch="sm_90a")`
    """
    if not source.exists():
        raise FileNotFoundError(f"CUDA source not found: {source}")
    if option := next(filter(names_arch, options), None):
        raise ToolchainError(f"options: {option!r}: name the architecture with --arch (ARCH in CMake)")
    dirs = [*include_dirs, source.absolute().parent]
    call = Call(
        name=source.name,
        sources=Sources(cuda=((str(source), read_source_file(source)),)),
        makes="cubin",
        options=read_options({"extra_cuda_cflags": options, "extra_include_paths": dirs}),
        arch=arch,
    )
    request = make_request(call)
    if len(request.archs) != 1 and not is_fatbin:
        raise ToolchainError(f"a cubin is for one architecture, not {', '.join(request.archs)}.")
    check_is_device_code(request)
    device_source = DeviceSource(
        name=source.name,
        pieces=request.pieces,
        options=request.options,
        include_dirs=tuple(map(Path, request.include_dirs)),
        kernels=tuple(kernels),
    )
    toolchain = find_cuda_toolchain(request.settings)
    compiled = tuple(compile_for_arch(device_source, arch, toolchain) for arch in request.archs)
    cubins = [(result.cubin.arch, result.cubin.data) for result in compiled]
    replace_file(output, make_fatbin(cubins) if is_fatbin else cubins[0][1])
    # Headers that do not exist are left out, because make would require a rule for each of them.
    headers = dict.fromkeys(header for result in compiled for header in result.headers if header.is_file())
    return compiled, (source.absolute(), *headers, toolchain.nvrtc_path)


def depfile_text(target: str, files: Sequence[Path]) -> str:
    """Return the rule that tells make and ninja which files a target depends on."""
    return f"{_escape(target)}: {' '.join(_escape(str(path)) for path in files)}\n"


def _escape(text: str) -> str:
    return re.sub(r"([ #\\])", r"\\\1", text).replace("$", "$$")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; see `run_command`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="python -m jitload.cmake.generate_cubin",
        description="Compile a CUDA file to a cubin with NVRTC.",
        epilog="Options for the compiler come last, after --.",
    )
    option = parser.add_argument
    option("--output", required=True, metavar="PATH", help="the cubin or fatbin to write")
    option("--source", required=True, metavar="PATH", help="the CUDA file")
    option("--arch", default="native", help="the architecture, such as sm_90a; the default is the GPU of this machine")
    option("--fatbin", action="store_true", help="write a fatbin, for several architectures: --arch sm_80,sm_90a")
    option("--kernel", action="append", default=[], metavar="NAME", help="a template to instantiate: 'scale<float>'")
    option("--include-dir", action="append", default=[], metavar="DIR", help="a directory of headers")
    option("--depfile", metavar="PATH", help="write the files that the output depends on as a rule for make")
    option("--depfile-target", metavar="NAME", help="the target of that rule; the default is the output")
    option("-v", "--verbose", action="store_true", help="print the kernels that were compiled")
    args = parser.parse_args(words[:end])

    def compile_source() -> None:
        compiled, files = generate_cubin(
            Path(args.source),
            Path(args.output),
            arch=args.arch,
            is_fatbin=args.fatbin,
            kernels=args.kernel,
            options=words[end + 1 :],
            include_dirs=[Path(directory) for directory in args.include_dir],
        )
        if args.depfile:
            replace_file(Path(args.depfile), depfile_text(args.depfile_target or args.output, files).encode())
        if args.verbose:
            for result in compiled:
                for kernel in result.cubin.kernels:
                    print(f"{result.cubin.arch} {kernel}: {kernel.registers} registers")

    return run_command(compile_source, {"arch": "--arch ", "extra_include_paths": "--include-dir="})


if __name__ == "__main__":
    sys.exit(main())
