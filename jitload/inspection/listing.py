"""Shows a kernel: its PTX and its machine code."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from jitload.elf.file import ElfFile
from jitload.errors import JitLoadError
from jitload.inspection.code import LoadedKernel, find_code, find_ptx, read_entry
from jitload.settings import read_settings
from jitload.toolchain.arch import canonical_arch, machine_arch
from jitload.toolchain.nvcc import find_nvdisasm, run_nvdisasm
from jitload.words import Argument


class Listing(str):
    """PTX or SASS as a `str` whose `repr` has no quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


# ---- PTX -------------------------------------------------------------------------------------------------------------


def read_ptx(loaded: LoadedKernel, arch: str | None) -> Listing:
    """Return the PTX with a kernel and all others that were compiled with it. Without PTX, raise JitLoadError.

    The PTX is in the library if it was built for an architecture such as `compute_90`. The cache entry of a build has
    the PTX of its machine code.
    """
    name = machine_arch(canonical_arch(arch)) if isinstance(arch, str) else arch
    if loaded.ptx and not loaded.cubins and name not in loaded.ptx:
        if name is not None or len(loaded.ptx) > 1:
            archs = [target.replace("sm_", "compute_") for target in loaded.ptx]
            problem = f"{loaded.name}() has PTX for {', '.join(archs)}: name one of these, "
            raise JitLoadError(problem, Argument("arch", archs[0]))
        (name,) = loaded.ptx
    text = loaded.ptx.get(name) if isinstance(name, str) else None
    if text is None:
        cubin, _ = find_code(loaded, name)
        path = find_ptx(cubin, loaded.origin)
        text = path.read_text(encoding="utf-8", errors="replace") if path else loaded.ptx.get(cubin.arch)
        if text is None:
            raise _no_ptx(loaded, cubin.arch)
    return Listing(text.strip("\n") + "\n")


def _no_ptx(loaded: LoadedKernel, arch: str) -> JitLoadError:
    if read_entry(loaded.origin) is not None:
        reason = "its cubin was compiled elsewhere, so jitload does not have the PTX"
        advice = "Write the PTX with the compiler that made the cubin"
    else:
        reason = f"{loaded.origin} has only machine code for {arch}; the PTX is in the cache entry of the build"
        advice = "Load the kernel from its source, with load_inline() or load()"
    return JitLoadError(f"{loaded.name}() has no PTX: {reason}. {advice}; sass() shows the machine code")


# ---- machine code ----------------------------------------------------------------------------------------------------

_LOCATION = "//## File "
_DIRECTIVE = re.compile(r"\s+\.(?:type|size|other|global|align|section|sectioninfo|sectionflags|weak|local)\b")


def read_sass(loaded: LoadedKernel, arch: str | None, *, source: bool) -> Listing:
    """Return the SASS of a kernel and of the functions that it calls, as nvdisasm prints it.

    With `source`, it names the file and line of the source above their instructions. Raise JitLoadError if the kernel
    was built without line information.
    """
    cubin, kernel = find_code(loaded, arch)
    lines = disassemble(cubin.data, kernel.symbol, with_lines=source)
    if source and not any(_LOCATION in line for line in lines):
        raise JitLoadError(
            f"the lines of {loaded.name}() cannot be shown, because it was built without line information. Build it "
            "with ",
            Argument("extra_cuda_cflags", "-lineinfo", python="extra_cuda_cflags=['-lineinfo']"),
            ", which does not change its instructions (for a Triton kernel, set TRITON_DISABLE_LINE_INFO=0).",
        )
    numbers = f"{kernel.registers} registers, {kernel.shared_bytes} bytes of static shared memory"
    return Listing(f"// {loaded.name}, {cubin.arch}: {numbers}\n" + "\n".join(lines) + "\n")


def disassemble(cubin: bytes, symbol: str, *, with_lines: bool = False) -> list[str]:
    """Return the lines of nvdisasm's listing of one kernel, without the assembler's directives."""
    program = find_nvdisasm(read_settings())
    index = next(number for number, entry in enumerate(ElfFile(cubin).symbols()) if entry.name == symbol)
    with tempfile.TemporaryDirectory(prefix="jitload-") as directory:
        path = Path(directory) / "kernel.cubin"
        path.write_bytes(cubin)
        options = ("--print-code", *(("--print-line-info-inline",) if with_lines else ()), f"-fun={index}")
        listing = run_nvdisasm(program, options, path)
    _, _, body = listing.partition(f".text.{symbol}:\n")
    body, _, _ = body.partition("\n//-----")
    lines = [line.expandtabs() for line in body.rstrip().splitlines()]
    return [line for line in lines if not _DIRECTIVE.match(line)]
