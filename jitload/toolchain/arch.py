"""Architecture names: `"native"`, `sm_90a`, `90a`, `9.0a`, several of them, in; canonical names out."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence

from jitload.errors import ToolchainError, warn_once
from jitload.settings import Settings
from jitload.toolchain.driver import current_capability, driver_error

_ARCH = re.compile(r"(?:sm_|compute_)?(\d{2,3})([af]?)|(\d{1,2})\.(\d)([af]?)")
CPU = "cpu"  # the host's processor, as an architecture beside those of GPUs
_ON_CPU = (
    "arch='native', and there is no GPU here: kernels are compiled for the CPU and take tensors on the CPU. To compile "
    "for a GPU, name one, arch='sm_90a', or set JITLOAD_ARCH=sm_90a; arch='cpu' says the same without this warning."
)
_FIRST_WITH_SUFFIX = 90  # sm_90a is the first architecture with instructions of its own alone


def resolve_arch(arch: str | Iterable[str], settings: Settings, *, may_be_cpu: bool = False) -> tuple[str, ...]:
    """Return the architectures to build for, canonical and without repetition: `("sm_90a",)`.

    `"native"` is the current GPU with its suffix; where there is no GPU to ask, `JITLOAD_ARCH` answers, or tvm-ffi's
    `TVM_FFI_CUDA_ARCH_LIST`, and after them the CPU, where what is built runs on this machine at once.

    Raises:
        ToolchainError: A name is malformed, or there is neither a GPU nor one of the variables.
    """
    resolved = [found for name in _names(arch) for found in _resolve_one(name, settings, may_be_cpu=may_be_cpu)]
    if not resolved:
        raise ToolchainError("arch= is empty; name an architecture such as 'sm_90a', or 'native'.")
    return tuple(dict.fromkeys(resolved))


def resolve_gpu_arch(arch: str | Iterable[str], settings: Settings, *, what: str) -> tuple[str, ...]:
    """Return the architectures of GPUs to build for, where there is no code for the CPU to be had.

    Raises:
        ToolchainError: The CPU is named, or as for `resolve_arch`.
    """
    archs = resolve_arch(arch, settings)
    on_gpus = tuple(name for name in archs if name != CPU)
    if not on_gpus or CPU in _names(arch):
        raise ToolchainError(
            f"{what} for a GPU alone, not for 'cpu': name an architecture, arch='sm_90a', or set JITLOAD_ARCH=sm_90a. "
            "On the CPU run kernels in CUDA C++ that load_inline() or load() gets without C++ of your own."
        )
    return on_gpus


def resolve_one_gpu_arch(arch: str | Iterable[str], settings: Settings, *, who: str) -> str:
    """Return the one architecture that a function, such as `compile_cubin()`, makes machine code for.

    Raises:
        ToolchainError: There are several, or as for `resolve_gpu_arch`.
    """
    archs = resolve_gpu_arch(arch, settings, what=f"{who} compiles")
    if len(archs) != 1:
        raise ToolchainError(f"{who} makes one cubin, so it takes one architecture, not {', '.join(archs)}.")
    return archs[0]


def _names(arch: str | Iterable[str]) -> Sequence[str]:
    if isinstance(arch, bytes) or not isinstance(arch, str | Iterable):
        raise ToolchainError(f"arch= must be a str such as 'sm_90a', or several, got {type(arch).__name__}")
    return _split(arch) if isinstance(arch, str) else [str(name) for name in arch]


@functools.lru_cache(maxsize=64)
def _split(names: str) -> tuple[str, ...]:
    return tuple(name for name in re.split(r"[,;\s]+", names) if name)


def _resolve_one(name: str, settings: Settings, *, may_be_cpu: bool) -> tuple[str, ...]:
    if name != "native":
        return (canonical_arch(name),)
    if capability := current_capability():
        return (_with_suffix(10 * capability[0] + capability[1]),)
    if named := [name for name in _split(settings.arch) if name != "native"]:
        return tuple(canonical_arch(name, settings.arch_variable) for name in named)
    error = driver_error()
    if may_be_cpu and not error and settings.mode != "load-only":
        warn_once(_ON_CPU)
        return (CPU,)
    why = f"the CUDA driver does not start: error {error}" if error else "there is none here"
    raise ToolchainError(f"arch='native' asks the GPU, and {why}. Name one, arch='sm_90a', or set JITLOAD_ARCH=sm_90a.")


def _with_suffix(number: int) -> str:
    return f"sm_{number}a" if number >= _FIRST_WITH_SUFFIX else f"sm_{number}"


@functools.lru_cache(maxsize=64)
def canonical_arch(name: str, given_as: str = "arch") -> str:
    """Return `sm_90a` for `sm_90a`, `90a`, `9.0a` and `compute_90a`."""
    if name.strip() == CPU:
        return CPU
    if match := _ARCH.fullmatch(name.strip()):
        return f"sm_{match[1] or match[3] + match[4]}{match[2] or match[5] or ''}"
    raise ToolchainError(f"{given_as}={name!r} is no architecture; write 'sm_90a', '9.0a' or 'native'.")


def capability_of(arch: str) -> tuple[int, str]:
    """Return (90, "a") for `sm_90a`."""
    match = _ARCH.fullmatch(arch)
    assert match is not None
    return int(match[1]), match[2]
