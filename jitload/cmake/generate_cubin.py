"""Compile a CUDA file to a cubin or fatbin with NVRTC, as a step of any build system.

    python -m jitload.cmake.generate_cubin --output kernel.cubin --source kernel.cu --arch sm_90a -- -DN=4
    python -m jitload.cmake.generate_cubin --output kernel.fatbin --source kernel.cu --arch sm_80,sm_90a --fatbin

Arguments after `--` are options for the compiler.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from jitload.cuda.fatbin import make_fatbin
from jitload.errors import ToolchainError
from jitload.kernels.compilation import compile_cubins
from jitload.request.arguments import Call, read_kernels, read_options
from jitload.request.request import make_request
from jitload.request.sources import Sources, read_source_file
from jitload.settings import read_settings
from jitload.toolchain.arch import machine_arch, resolve_gpu_arch
from jitload.toolchain.cuda import find_cuda_toolchain
from jitload.toolchain.private_files import replace_file
from jitload.utils.embed_cubin import run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0, or 1 for a missing file, 2 for bad input, or 3 for any other OSError."""
    parser = argparse.ArgumentParser(
        prog="python -m jitload.cmake.generate_cubin", description="Compile a CUDA file to a cubin with NVRTC."
    )
    option = parser.add_argument
    option("--output", required=True, type=Path, metavar="PATH", help="the cubin or fatbin to write")
    option("--source", required=True, type=Path, metavar="PATH", help="the CUDA file")
    option("--arch", default="native", help="the architecture, such as sm_90a; the default is the GPU of this machine")
    option("--fatbin", action="store_true", help="write a fatbin, for several architectures: --arch sm_80,compute_80")
    option("--kernel", action="append", default=[], metavar="NAME", help="a template to instantiate: 'scale<float>'")
    option("--include-dir", action="append", default=[], type=Path, metavar="DIR", help="a directory of headers")
    option("--depfile", type=Path, metavar="PATH", help="write the files that the output depends on as a rule for make")
    option("options", nargs="*", metavar="OPTION", help="an option of the compiler, after --")
    command = functools.partial(_generate_cubin, parser.parse_args(arguments))
    return run_command(command, {"arch": "--arch ", "extra_include_paths": "--include-dir="})


def _generate_cubin(args: argparse.Namespace) -> None:
    """Compile a CUDA file and write the cubin or fatbin.

    With `--depfile`, also write a make rule that lists the files read during the compilation.
    """
    source: Path = args.source
    if not source.exists():
        raise FileNotFoundError(f"CUDA source not found: {source}")
    archs = resolve_gpu_arch(args.arch, read_settings(), subject="cubins are compiled", may_be_ptx=args.fatbin)
    call = Call(
        name=source.name,
        sources=Sources(cuda=((str(source), read_source_file(source)),)),
        makes="cubin",
        options=read_options(
            extra_cuda_cflags=args.options, extra_include_paths=[*args.include_dir, source.absolute().parent]
        ),
        arch=tuple(dict.fromkeys(map(machine_arch, archs))),
        exports=read_kernels(args.kernel),
    )
    request = make_request(call)._replace(archs=archs)
    if len(request.archs) != 1 and not args.fatbin:
        raise ToolchainError(
            f"a cubin is for one architecture, not {', '.join(request.archs)}; use --fatbin for several."
        )
    compiled = compile_cubins(request)
    images = [(result.cubin.arch, result.cubin.data) for result in compiled]
    replace_file(args.output, make_fatbin(images) if args.fatbin else images[0][1])
    if args.depfile:
        # Headers that do not exist are left out, because make would require a rule for each of them.
        headers = dict.fromkeys(header for result in compiled for header in result.headers if header.is_file())
        files = (source.absolute(), *headers, find_cuda_toolchain(request.settings).nvrtc_path)
        rule = f"{_escape(args.output)}: {' '.join(map(_escape, files))}\n"
        replace_file(args.depfile, rule.encode())


def _escape(path: Path) -> str:
    return re.sub(r"([ #\\])", r"\\\1", str(path)).replace("$", "$$")


if __name__ == "__main__":
    sys.exit(main())
