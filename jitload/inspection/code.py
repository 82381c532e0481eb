"""Finds the machine code of a typed function, and the files of the cache entry that it was built in."""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jitload.cache.entry import check_files, read_manifest
from jitload.elf.cubin import read_cubin
from jitload.elf.file import HEADER_SIZE, file_size
from jitload.errors import CacheError, JitLoadError, ToolchainError
from jitload.model import Cubin, Kernel
from jitload.toolchain.arch import CPU, canonical_arch, capability_of, current_capability, native_arch, runs_on
from jitload.words import Argument

_ELF_MAGIC = b"\x7fELF"
_SUFFIXES = ("", "f", "a")  # of architectures, the most special one last


class LoadedKernel(NamedTuple):
    """A kernel of a loaded library.

    Attributes:
        name: The function's name.
        symbol: The kernel's symbol in the cubins.
        cubins: The cubins in the library, by their architectures.
        ptx: The PTX in the library, by the architectures in its `.target` lines, such as `sm_90`.
        origin: The path of the library. For a library from the cache, this is the path in the cache entry.
    """

    name: str
    symbol: str
    cubins: dict[str, Cubin]
    ptx: dict[str, str]
    origin: Path


def loaded_kernel(facts: Mapping[str, Any], get_image: Callable[[int, int], int | None], origin: Path) -> LoadedKernel:
    """Return the kernel of a typed function.

    `facts` is the library's description of the function. `get_image` takes the numbers of a function and of an image,
    and returns the address of the image, or None if there is no such image.
    """
    check_single_kernel(facts)
    name, cubins, ptx, number = facts["name"], dict[str, Cubin](), dict[str, str](), 0
    while address := get_image(facts["index"], number):
        number += 1
        if ctypes.string_at(address, len(_ELF_MAGIC)) == _ELF_MAGIC:
            data = ctypes.string_at(address, file_size(ctypes.string_at(address, HEADER_SIZE)))
            cubin = read_cubin(data, name=f"the cubin of {name!r}")
            cubins[cubin.arch] = cubin
        else:
            text = ctypes.string_at(address).decode()
            if target := re.search(r"^\s*\.target\s+(\w+)", text, re.MULTILINE):
                ptx[target[1]] = text
    return LoadedKernel(name, facts["kernel"]["symbol"], cubins, ptx, origin)


def check_single_kernel(facts: Mapping[str, Any]) -> None:
    """Raise JitLoadError if `facts` describes a host function, or a function with several kernels."""
    name = facts["name"]
    if "returns" in facts:
        raise JitLoadError(f"{name}() is a host function: it has no kernel of its own to show")
    variants = facts.get("triton", {}).get("variants", ())
    if len(variants) > 1:
        raise JitLoadError(f"{name}() chooses one of several kernels: name one of them, mod[{variants[0]!r}]")
    if signatures := facts.get("variants"):
        raise JitLoadError(
            f"{name}() chooses one of several kernels by the dtypes of its arguments: {'; '.join(signatures)}. "
            "Export the one to look at by a name of its own, functions={'f': Launch(kernel=…)}"
        )


def find_code(loaded: LoadedKernel, arch: str | None) -> tuple[Cubin, Kernel]:
    """Return the cubin with the machine code of a kernel for an architecture, and the kernel as the cubin describes it.

    If `arch` is None and the library has several architectures, return the code that the current GPU would run.
    """
    advice = Argument("arch", "sm_90a"), " or another architecture"
    if not loaded.cubins and loaded.ptx:
        raise JitLoadError(
            f"{loaded.name}() has only PTX in {loaded.origin}, which the driver compiles at the first launch. To "
            "inspect it, also build it for a GPU: ",
            *advice,
        )
    if not loaded.cubins:
        raise JitLoadError(
            f"{loaded.name}() was built for the CPU only, so it has no PTX and no occupancy. objdump -d "
            f"{loaded.origin} shows its machine code. To inspect it for a GPU, build it with ",
            *advice,
        )
    cubin = loaded.cubins[_choose_arch(loaded.name, tuple(loaded.cubins), arch)]
    kernel = next((kernel for kernel in cubin.kernels if kernel.symbol == loaded.symbol), None)
    if kernel is None:
        raise JitLoadError(f"{loaded.name}(): the cubin for {cubin.arch} has no kernel {loaded.symbol!r}")
    return cubin, kernel


def _choose_arch(function: str, archs: tuple[str, ...], requested: str | None) -> str:
    listed = ", ".join(archs)
    if requested is not None:
        if not isinstance(requested, str):
            raise ToolchainError(
                *(f"{function}(): ", Argument("arch")),
                f" must be a str such as {archs[0]!r}, got {type(requested).__name__}",
            )
        name = canonical_arch(requested)
        if name in archs:
            return name
        problem = "shows only code for GPUs:" if name == CPU else f"has no code for {name}:"
        raise JitLoadError(
            f"{function}() {problem} the library has code for {listed}; name one of these, ", Argument("arch", archs[0])
        )
    if len(archs) == 1:
        return archs[0]
    if capability := current_capability():
        # At a launch, `jitload_image_rank` in runtime/core/driver.cc orders cubins alike.
        usable = [arch for arch in archs if runs_on(arch, native_arch(capability))]
        if usable:
            return max(usable, key=lambda arch: (_SUFFIXES.index(capability_of(arch)[1]), capability_of(arch)[0]))
    raise JitLoadError(f"{function}() has code for {listed}: name one of these, ", Argument("arch", archs[0]))


# ---- the cache entry ---------------------------------------------------------------------------------------------


def find_ptx(cubin: Cubin, library: Path) -> Path | None:
    """Return the path of a cubin's PTX in the cache entry of its library, or None if the entry has no PTX.

    The file of the PTX has the name of the cubin's file, with the suffix `.ptx`.

    Raises:
        CacheError: The file is damaged.
    """
    manifest = read_entry(library) or {"files": {}}
    digest = hashlib.sha256(cubin.data).hexdigest()
    names = (name for name, (_, sha256) in manifest["files"].items() if sha256 == digest)
    paths = (library.with_name(name).with_suffix(".ptx") for name in names)
    path = next((path for path in paths if path.name in manifest["files"] and path.is_file()), None)
    try:
        check_files(library.parent, manifest, [path.name] if path else [])
    except (OSError, ValueError, LookupError, TypeError) as error:  # a crash of the machine may truncate files
        problem = f"{path} is damaged: remove the directory {library.parent}, and build the library again"
        raise CacheError(problem) from error
    return path


def read_entry(library: Path) -> dict[str, Any] | None:
    """Return the manifest of the cache entry that contains a library.

    Return None if the library is not in a cache entry, or if the manifest is damaged.
    """
    try:
        manifest = read_manifest(library.parent)
        return manifest if isinstance(manifest.get("files"), dict) else None
    except (OSError, ValueError, RecursionError):
        return None
