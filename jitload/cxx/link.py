"""The link options of hand-written C++ in: which of them can be used here, and the libraries that they name, out."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from jitload.cxx.driver_calls import driver_calls_text, find_driver_calls
from jitload.cxx.nvcc import find_nvcc_cudart
from jitload.errors import ToolchainError
from jitload.settings import Settings
from jitload.toolchain.cuda import CudaToolchain, Nvcc, find_cudart
from jitload.toolchain.host import Compiler

_NOT_OF_LINKER = re.compile(r"-[DUWO](?!l,)|-std=|-I|-w$")
_CUDART = re.compile(r"(?:__)?cuda[A-Z]\w*")


def quick_linker(compiler: Compiler, flags: Sequence[str]) -> tuple[str, ...]:
    """Return the option for GNU gold, where it is there and no option of the user's may mean something to a linker.

    It reads the symbols of the C++ library, which is most of such a link, in a third of the time that GNU ld takes.
    """
    is_plain = len(compiler.command) == 1 and all(map(_NOT_OF_LINKER.match, flags))
    return ("-fuse-ld=gold",) if is_plain and platform.machine() == "x86_64" and shutil.which("ld.gold") else ()


def present_libraries(flags: Sequence[str], compiler: Compiler) -> tuple[str, ...]:
    """Drop `-lcuda` and `-lcudart` where there is no such library: nothing of ours needs them."""
    return tuple(flag for flag in flags if flag not in ("-lcuda", "-lcudart") or _can_link(flag, flags, compiler))


def _can_link(library: str, flags: Sequence[str], compiler: Compiler) -> bool:
    search = [flag for at, flag in enumerate(flags) if flag.startswith("-L") or flags[max(at - 1, 0)] == "-L"]
    command = [*compiler.command, "-shared", "-nostartfiles", *search, library, "-o", "/dev/null"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def libraries_given(flags: Sequence[str]) -> Iterator[Path]:
    """Yield the files that link options name, by their paths or as `-l` in a directory given with `-L`."""
    places = [flag[2:] or flags[at + 1] for at, flag in enumerate(flags) if flag.startswith("-L") and flag != flags[-1]]
    places += [flag[2:] for flag in flags[-1:] if len(flag) > 2 and flag.startswith("-L")]
    for flag in flags:
        names = (f"lib{flag[2:]}.so", f"lib{flag[2:]}.a") if flag.startswith("-l") else ()
        paths = (Path(flag), *(Path(place, name) for place in places for name in names))
        yield from (path for path in paths if path.is_absolute() and (names or path.is_file()))


def files_named(flags: Sequence[str]) -> Iterator[Path]:
    """Yield the files that options name within: `@/options`, `-Wl,--version-script=/exports`, `-specs=/specs`."""
    for flag in flags:
        parts = re.split("[=,@]", flag)[1:]
        yield from (Path(part) for part in parts if part.startswith("/") and Path(part).is_file())


# ---- CUDA's libraries ------------------------------------------------------------------------------------------


def missing_driver_text(needed: Collection[str], kit: CudaToolchain | Nvcc | None, flags: Sequence[str]) -> str:
    """Return C for the driver's functions that a library calls and nothing given provides, or ""."""
    if not isinstance(kit, CudaToolchain) or any("libcuda" in flag or flag == "-lcuda" for flag in flags):
        return ""
    functions = find_driver_calls(needed, kit.include_dirs)
    return driver_calls_text(functions) if functions else ""


def with_runtime(flags: tuple[str, ...], kit: CudaToolchain | Nvcc | None, settings: Settings) -> tuple[str, ...]:
    """Add the CUDA runtime library that what nvcc made needs in any case, and where it is, to the link's options."""
    cudart = find_nvcc_cudart(kit, settings) if isinstance(kit, Nvcc) else None
    if cudart is None:
        return flags
    library = () if any("cudart" in flag for flag in flags) else (str(cudart),)
    return (*flags, *library, f"-Wl,-rpath,{cudart.parent}")


def missing_cudart(
    needed: Collection[str], kit: CudaToolchain | Nvcc | None, flags: Sequence[str], *, name: str
) -> tuple[str, ...]:
    """Return what to link for the functions of the CUDA runtime that a library calls and nothing given provides.

    Raises:
        ToolchainError: There is no CUDA runtime library to link.
    """
    functions = sorted(symbol for symbol in needed if _CUDART.fullmatch(symbol))
    if not functions or any("cudart" in flag for flag in flags):
        return ()
    cudart = find_cudart(kit) if isinstance(kit, CudaToolchain) else None
    if cudart is None:
        raise ToolchainError(
            f"module {name!r} calls {', '.join(functions[:3])}, and there is no CUDA runtime library to link. Install "
            "it with: pip install nvidia-cuda-runtime  (nvidia-cuda-runtime-cu12 for CUDA 12), or name one in "
            "extra_ldflags=[…]."
        )
    return (str(cudart), f"-Wl,-rpath,{cudart.parent}")
