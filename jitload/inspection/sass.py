"""Disassembles a kernel with nvdisasm, and puts the lines of its source beside the instructions."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from jitload.cache.entry import MANIFEST
from jitload.elf.file import ElfFile
from jitload.errors import JitLoadError
from jitload.inspection.code import KernelCode, LoadedKernel, find_code, read_entry
from jitload.inspection.listing import Listing
from jitload.settings import read_settings
from jitload.toolchain.nvdisasm import find_nvdisasm, run_nvdisasm

_LOCATION = re.compile(r'^\s*//## File "([^"]*)", line (\d+)(?: inlined at "([^"]*)", line (\d+))?')
_PIECE = re.compile(r"cuda_sources\[(\d+)\]")
_DIRECTIVE = re.compile(r"\s+\.(?:type|size|other|global|align|section|sectioninfo|sectionflags|weak|local)\b")


def read_sass(kernel: LoadedKernel, arch: str | None, *, source: bool) -> Listing:
    """Return the machine code of a kernel, with the functions that it calls.

    Args:
        kernel: The kernel.
        arch: As for `find_code`.
        source: Whether each piece of code is preceded by the line of the source that it was compiled from.

    Raises:
        JitLoadError: The code was built without line information, or as for `find_code`.
        ToolchainError: nvdisasm is missing, or does not know the architecture.
    """
    code = find_code(kernel, arch)
    lines = disassemble(code.cubin, code.kernel.symbol, with_lines=source)
    if source:
        if not any(_LOCATION.search(line) for line in lines):
            raise JitLoadError(
                f"{code.function}() was built without line information: build it with extra_cuda_cflags=['-lineinfo'], "
                "which does not change its instructions (for a Triton kernel, set TRITON_DISABLE_LINE_INFO=0)"
            )
        lines = list(_with_source(lines, _source_reader(code)))
    facts = code.kernel
    numbers = f"{facts.registers} registers, {facts.shared_bytes} bytes of static shared memory"
    if facts.spill_bytes:
        numbers += f", {facts.spill_bytes} bytes of spills"
    return Listing(f"// {code.function}, {code.arch}: {numbers}\n" + "\n".join(lines) + "\n")


def disassemble(cubin: bytes, symbol: str, *, with_lines: bool = False) -> list[str]:
    """Return the lines of nvdisasm's listing of one kernel, without the assembler's directives.

    Raises:
        ToolchainError: nvdisasm is missing, or does not know the architecture.
    """
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


# ---- lines of the source -----------------------------------------------------------------------------------------


def _with_source(lines: list[str], read: Callable[[str, int], str]) -> Iterator[str]:
    """Yield the lines with the text of the source in place of nvdisasm's names of files."""
    is_inlined = False
    for line in lines:
        match = _LOCATION.search(line)
        if match is None:
            yield line
            is_inlined = False
            continue
        file, number, caller, caller_number = match.groups()
        if caller or not is_inlined:  # after inlined code, nvdisasm names the outermost line once more
            text = read(file, int(number))
            inlined = f", inlined at {Path(caller).name}:{caller_number}" if caller else ""
            yield f"    // {Path(file).name}:{number}{inlined}{'  ' if text else ''}{text}"
        is_inlined = caller is not None


def _source_reader(code: KernelCode) -> Callable[[str, int], str]:
    """Return a function that returns a line of a file, or "" if it is not known what stood there at the build."""
    manifest = read_entry(code.origin)

    @lru_cache(maxsize=64)
    def lines_of(file: str) -> list[str]:
        path = manifest and _source_file(code.origin.parent, manifest, file)
        return path.read_text(encoding="utf-8", errors="replace").splitlines() if path else []

    def read(file: str, number: int) -> str:
        lines = lines_of(file)
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""

    return read


def _source_file(entry_dir: Path, manifest: dict[str, Any], file: str) -> Path | None:
    """Return the file with the text that was compiled under a name, unless it may have changed since."""
    match = _PIECE.fullmatch(Path(file).name)
    pieces = [name for name in manifest["files"] if re.fullmatch(r"source\d+\.cu", name)]
    number = int(match[1]) if match else 0
    if match or (len(pieces) == 1 and Path(file).name == f"{manifest.get('name')}.cu"):
        path = entry_dir / f"source{number}.cu"
        return path if path.name in pieces and path.is_file() else None
    path = Path(file)
    built = min((entry_dir / MANIFEST).stat().st_mtime, manifest.get("created", 0) + 1)  # `created` is in whole seconds
    return path if path.is_file() and path.stat().st_mtime <= built else None
