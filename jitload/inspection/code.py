"""Finds the machine code of a typed function, and the files of the cache entry that it was built in."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jitload.cache.entry import MANIFEST, check_files, read_manifest
from jitload.elf.cubin import read_cubin
from jitload.elf.file import HEADER_SIZE, file_size
from jitload.errors import CacheError, JitLoadError, ToolchainError
from jitload.model import Cubin, Kernel
from jitload.toolchain.arch import CPU, canonical_arch, capability_of, current_capability, native_arch, runs_on
from jitload.words import Argument

_ELF_MAGIC = b"\x7fELF"
_SOURCE = re.compile(r"(?:source\d+|c(?:pp|uda)_sources)\.(?:cu|cc)")
_SUFFIXES = ("", "f", "a")  # of architectures, the most special one last


class LoadedKernel(NamedTuple):
    """A kernel of a loaded library.

    Attributes:
        name: The function's name.
        symbol: The kernel's symbol in the cubins.
        get_image: A function that takes the index of a cubin and returns its address, or None if there is no such
            cubin.
        origin: The path of the library. For a library from the cache, this is the path in the cache entry.
    """

    name: str
    symbol: str
    get_image: Callable[[int], int | None]
    origin: Path


class KernelCode(NamedTuple):
    """A kernel's machine code for one architecture.

    Attributes:
        function: The function's name.
        arch: The architecture.
        cubin: The bytes of the whole cubin.
        kernel: The description of the kernel in the cubin.
        origin: The path of the library. For a library from the cache, this is the path in the cache entry.
    """

    function: str
    arch: str
    cubin: bytes
    kernel: Kernel
    origin: Path


def loaded_kernel(facts: Mapping[str, Any], get_image: Callable[[int, int], int | None], origin: Path) -> LoadedKernel:
    """Return the kernel of a typed function. `facts` is the library's description of the function."""
    check_single_kernel(facts)
    name, index = facts["name"], facts["index"]
    return LoadedKernel(name, facts["kernel"]["symbol"], lambda number: get_image(index, number), origin)


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


def find_code(kernel: LoadedKernel, arch: str | None) -> KernelCode:
    """Return the machine code of a kernel for an architecture.

    If `arch` is None and the library has several architectures, return the code that the current GPU would run.
    """
    cubins = {cubin.arch: cubin for cubin in _read_cubins(kernel)}
    if not cubins and kernel.get_image(0):
        raise JitLoadError(
            f"{kernel.name}() has only PTX in {kernel.origin}, which the driver compiles at the first launch. To "
            "inspect it, also build it for a GPU: ",
            *(Argument("arch", "sm_90a"), " or another architecture"),
        )
    if not cubins:
        raise JitLoadError(
            f"{kernel.name}() was built for the CPU only, so it has no PTX and no occupancy. objdump -d "
            f"{kernel.origin} shows its machine code. To inspect it for a GPU, build it with ",
            *(Argument("arch", "sm_90a"), " or another architecture"),
        )
    name = _choose_arch(kernel.name, tuple(cubins), arch)
    entry = next((entry for entry in cubins[name].kernels if entry.symbol == kernel.symbol), None)
    if entry is None:
        raise JitLoadError(f"{kernel.name}(): the cubin for {name} has no kernel {kernel.symbol!r}")
    return KernelCode(function=kernel.name, arch=name, cubin=cubins[name].data, kernel=entry, origin=kernel.origin)


def _read_cubins(kernel: LoadedKernel) -> Iterator[Cubin]:
    for address in _addresses(kernel):
        if _is_cubin(address):
            data = ctypes.string_at(address, file_size(ctypes.string_at(address, HEADER_SIZE)))
            yield read_cubin(data, name=f"the cubin of {kernel.name!r}")


def read_embedded_ptx(kernel: LoadedKernel) -> dict[str, str]:
    """Return the PTX in a kernel's library, by the architectures in its `.target` lines, such as `sm_90`."""
    texts = [ctypes.string_at(address).decode() for address in _addresses(kernel) if not _is_cubin(address)]
    targets = (re.search(r"^\s*\.target\s+(\w+)", text, re.MULTILINE) for text in texts)
    return {target[1]: text for target, text in zip(targets, texts, strict=True) if target}


def has_machine_code(kernel: LoadedKernel) -> bool:
    """Return whether a kernel's library has a cubin, and not only PTX."""
    return any(map(_is_cubin, _addresses(kernel)))


def _addresses(kernel: LoadedKernel) -> Iterator[int]:
    for number in itertools.count():
        if not (address := kernel.get_image(number)):
            return
        yield address


def _is_cubin(address: int) -> bool:
    return ctypes.string_at(address, len(_ELF_MAGIC)) == _ELF_MAGIC


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


def find_ptx(code: KernelCode) -> Path | None:
    """Return the path of a cubin's PTX in the library's cache entry, or None if the entry has no PTX.

    The file of the PTX has the name of the cubin's file, with the suffix `.ptx`.

    Raises:
        CacheError: The file is damaged.
    """
    manifest = read_entry(code.origin) or {"files": {}}
    digest = hashlib.sha256(code.cubin).hexdigest()
    names = (name for name, (_, sha256) in manifest["files"].items() if sha256 == digest)
    paths = (code.origin.with_name(name).with_suffix(".ptx") for name in names)
    path = next((path for path in paths if path.name in manifest["files"] and path.is_file()), None)
    if path and not is_intact(path, manifest):
        raise CacheError(f"{path} is damaged: remove the directory {path.parent}, and build the library again")
    return path


def is_intact(path: Path, manifest: dict[str, Any]) -> bool:
    """Return whether an entry has a file, as the entry's manifest states. A crash of the machine may truncate files."""
    try:
        check_files(path.parent, manifest, [path.name])
    except (OSError, ValueError, LookupError, TypeError):
        return False
    return True


def read_entry(library: Path) -> dict[str, Any] | None:
    """Return the manifest of the cache entry that contains a library.

    Return None if the library is not in a cache entry, or if the manifest is damaged.
    """
    if not (library.parent / MANIFEST).is_file():
        return None
    try:
        manifest = read_manifest(library.parent)
        return manifest if isinstance(manifest.get("files"), dict) else None
    except (OSError, ValueError, RecursionError):
        return None


def kept_texts(origin: Path) -> list[str]:
    """Return the sources in the cache entry of a library, or [] if the library is not in a cache entry."""
    manifest = read_entry(origin)
    names = [name for name in (manifest["files"] if manifest else ()) if _SOURCE.fullmatch(name)]
    names.sort(key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
    paths = [origin.parent / name for name in names]
    if manifest is None or not all(is_intact(path, manifest) for path in paths):
        return []
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths]
