"""A CUDA file in, a cubin and the list of the headers that it was made from out: for build systems of a user's own.

python -m jitload.utils.generate_cubin --output kernel.cubin --source kernel.cu --arch sm_90a -- -DN=4
python -m jitload.utils.generate_cubin --output kernel.fatbin --source kernel.cu --arch sm_80,sm_90a --fatbin
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from jitload.device.fatbin import make_fatbin
from jitload.device.kernels import Compiled, DeviceSource, compile_kernels
from jitload.errors import ToolchainError
from jitload.flags import names_arch
from jitload.library import check_is_device_code
from jitload.request import Target, make_request, read_flags
from jitload.sources import Sources, read_file
from jitload.toolchain.cuda import find_cuda_toolchain
from jitload.utils.output import replace_file, run_command


def generate_cubin(  # noqa: PLR0913  the arguments of the command
    source: Path,
    output: Path,
    *,
    arch: str = "native",
    is_fatbin: bool = False,
    kernels: Sequence[str] = (),
    options: Sequence[str] = (),
    include_dirs: Sequence[Path] = (),
) -> tuple[tuple[Compiled, ...], tuple[Path, ...]]:
    """Compile a CUDA file to a cubin, or to a fatbin, on disk.

    Args:
        source: The file; its own directory is searched for headers, too.
        output: The cubin to write; its directory is made.
        arch: One architecture; for a fatbin several, `"sm_80,sm_90a"`.
        is_fatbin: Make a fatbin, even of one architecture.
        kernels: Template instantiations and overloads to compile.
        options: Compiler options.
        include_dirs: Directories of headers.

    Returns:
        What was compiled for each architecture, and the files it was made from: the source, its headers, and NVRTC.

    Raises:
        FileNotFoundError: There is no such source.
        CompileError: NVRTC refused it.
        ToolchainError: There is no NVRTC, or it does not know the architecture.

    Example:
        `generate_cubin(Path("kernel.cu"), Path("kernel.cubin"), arch="sm_90a")`
    """
    if not source.exists():
        raise FileNotFoundError(f"CUDA source not found: {source}")
    if named := next(filter(names_arch, options), None):
        raise ToolchainError(f"options: {named!r}: name the architecture with --arch (ARCH in CMake)")
    dirs = [*include_dirs, source.absolute().parent]
    pieces = ((str(source), read_file(source)),)
    request = make_request(
        source.name,
        Sources(cuda=pieces),
        flags=read_flags(cuda_cflags=options, include_paths=dirs),
        target=Target(makes="cubin", arch=arch),
    )
    if len(request.archs) != 1 and not is_fatbin:
        raise ToolchainError(f"a cubin is for one architecture, not {', '.join(request.archs)}.")
    check_is_device_code(request)
    device_source = DeviceSource(
        name=source.name,
        pieces=pieces,
        options=request.options,
        include_dirs=tuple(map(Path, request.include_dirs)),
        kernels=tuple(kernels),
    )
    kit = find_cuda_toolchain(request.settings)
    compiled = tuple(compile_kernels(device_source, arch, kit) for arch in request.archs)
    cubins = [(one.cubin.arch, one.cubin.data) for one in compiled]
    replace_file(output, make_fatbin(cubins) if is_fatbin else cubins[0][1])
    # Headers that were looked for in vain are not in it: make would ask for a rule that makes them.
    headers = dict.fromkeys(header for one in compiled for header in one.headers if header.is_file())
    return compiled, (source.absolute(), *headers, kit.nvrtc_path)


def depfile_text(target: str, files: Sequence[Path]) -> str:
    """Return the rule by which make and ninja know what a target was made from."""
    return f"{_make_word(target)}: {' '.join(_make_word(str(path)) for path in files)}\n"


def _make_word(text: str) -> str:
    return re.sub(r"([ #\\])", r"\\\1", text).replace("$", "$$")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 1 for a missing file, 2 where the source or a tool is refused, 3 for anything else."""
    parser = argparse.ArgumentParser(
        prog="python -m jitload.utils.generate_cubin", description="Compile a CUDA file to a cubin with NVRTC."
    )
    option = parser.add_argument
    option("--output", required=True, metavar="PATH", help="the cubin to write")
    option("--source", required=True, metavar="PATH", help="the CUDA file")
    option("--arch", default="native", help="the architecture, such as sm_90a; the default is the GPU of this machine")
    option("--fatbin", action="store_true", help="write a fatbin: for several architectures, --arch sm_80,sm_90a")
    option("--kernel", action="append", default=[], metavar="NAME", help="a template to instantiate: 'scale<float>'")
    option("--include-dir", action="append", default=[], metavar="DIR", help="where headers are")
    option("--depfile", metavar="PATH", help="write what the cubin was made from, as a rule of a makefile")
    option("--depfile-target", metavar="NAME", help="the target of that rule; the default is the output")
    option("-v", "--verbose", action="store_true", help="say what was compiled")
    option("options", nargs="*", metavar="OPTION", help="compiler options, behind --")
    given = parser.parse_args(arguments)

    def work() -> None:
        compiled, files = generate_cubin(
            Path(given.source),
            Path(given.output),
            arch=given.arch,
            is_fatbin=given.fatbin,
            kernels=given.kernel,
            options=given.options,
            include_dirs=[Path(directory) for directory in given.include_dir],
        )
        if given.depfile:
            replace_file(Path(given.depfile), depfile_text(given.depfile_target or given.output, files).encode())
        if given.verbose:
            for cubin in (one.cubin for one in compiled):
                for kernel in cubin.kernels:
                    print(f"{cubin.arch} {kernel}: {kernel.registers} registers")  # noqa: T201

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
