"""Resolves `arch=` to canonical architecture names: `"native"`, `90a` and `9.0a` may all be `sm_90a`.

`"native"` is the architecture of the current GPU. The CUDA driver is asked for it through ctypes, because every cache
hit needs the answer, and importing cuda.bindings would take ten times as long as the hit.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterable, Sequence

from jitload.errors import ToolchainError, warn_once
from jitload.settings import Settings
from jitload.words import Argument, Words

_ARCH = re.compile(r"(?:sm_|compute_)?(\d{2,3})([af]?)|(\d{1,2})\.(\d)([af]?)")
_PTX_PREFIX = "compute_"  # as in nvcc's option code=compute_90
CPU = "cpu"  # the architecture name of the host's processor
NATIVE_HINT = Words("Name an architecture, ", Argument("arch", "sm_90a"), ", or set JITLOAD_ARCH=sm_90a.")
_CPU_WARNING = (
    "arch='native', and there is no GPU here: kernels are compiled for the CPU and take tensors on the CPU. To compile "
    "for GPUs, name one, arch='sm_90a', or set JITLOAD_ARCH=sm_90a. Pass arch='cpu' to avoid this warning. "
    "(The option of commands and of %%cuda is --arch.)"
)
_FIRST_WITH_SUFFIX = 90  # sm_90a is the first architecture with instructions that no other architecture has
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE: the driver works, and there is no GPU that it may use
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


def resolve_arch(arch: str | Iterable[str], settings: Settings, *, may_be_cpu: bool = False) -> tuple[str, ...]:
    """Return the canonical names of the architectures to build for, without duplicates: `("sm_90a",)`.

    `"native"` stands for the architecture of the current GPU, with its suffix. Without a GPU, it stands for the
    architectures in `JITLOAD_ARCH` or in tvm-ffi's `TVM_FFI_CUDA_ARCH_LIST`. If neither variable is set, it stands for
    the CPU, provided that `may_be_cpu` is true.

    Raises:
        ToolchainError: A name is malformed, or `"native"` cannot be resolved.
    """
    archs = [target for name in _split_names(arch) for target in _resolve_name(name, settings, may_be_cpu=may_be_cpu)]
    if not archs:
        raise ToolchainError(Argument("arch"), " is empty; name an architecture such as 'sm_90a', or 'native'.")
    return tuple(dict.fromkeys(archs))


def resolve_gpu_arch(
    arch: str | Iterable[str], settings: Settings, *, subject: str, may_be_ptx: bool = False
) -> tuple[str, ...]:
    """Return the canonical names of the GPU architectures to build for.

    If `arch` names the CPU, or PTX where only machine code is possible, the error message begins with `subject`, such
    as "compile_cubin() compiles".

    Raises:
        ToolchainError: `arch` names the CPU or PTX, a name is malformed, or `"native"` cannot be resolved.
    """
    gpu_archs = tuple(name for name in resolve_arch(arch, settings) if name != CPU)
    if not gpu_archs or CPU in _split_names(arch):  # JITLOAD_ARCH may name the CPU besides GPUs
        raise ToolchainError(
            f"{subject} only for GPUs, not for 'cpu'. ",
            NATIVE_HINT,
            " The CPU runs only kernels that are passed to load_inline() or load() as CUDA C++, without a wrapper "
            "in C++.",
        )
    if not may_be_ptx and (ptx := next(filter(is_ptx, gpu_archs), None)):
        arch = machine_arch(ptx)
        raise ToolchainError(
            f"{subject} only for architectures of machine code, and {ptx!r} stands for PTX: name an architecture, ",
            *(Argument("arch", arch), ". The kernels that ", Argument("load_inline()"), " compiles may also have "),
            *("PTX, ", Argument("arch", f"{arch},{ptx}"), "."),
        )
    return gpu_archs


def add_archs(arch: str | Iterable[str], others: Iterable[str], settings: Settings) -> tuple[str, ...]:
    """Return the architectures in `arch`, followed by `others`, the architectures in the compiler's options.

    An `arch` of `"native"` is left out if the code for `others` runs on the current GPU, or if there is neither a GPU
    nor an architecture in the environment.
    """
    others = tuple(others)
    if arch == "native" and current_capability() is None:
        return others if not settings.arch else (arch, *others)
    if arch == "native":
        (native,) = _resolve_name(arch, settings, may_be_cpu=False)
        return others if any(runs_on(other, native) for other in others) else (arch, *others)
    return (*_split_names(arch), *others)


def resolve_one_gpu_arch(
    arch: str | Iterable[str], settings: Settings, *, function: str, option_archs: Iterable[str] = ()
) -> str:
    """Return the architecture for a function that takes only one, such as `compile_cubin()`.

    Args:
        arch: The architecture.
        settings: The settings.
        function: The function's name, for messages.
        option_archs: The architectures in the compiler's options. One of them may take the place of `"native"`.

    Raises:
        ToolchainError: `arch` names several architectures or the CPU, a name is malformed, `"native"` cannot be
            resolved, or the options name other architectures.
    """
    named = tuple(dict.fromkeys(map(machine_arch, option_archs)))
    chosen = add_archs(arch, named, settings) if arch == "native" and named else arch
    archs = resolve_gpu_arch(chosen, settings, subject=f"{function} compiles")
    if len(archs) != 1:
        raise ToolchainError(f"{function} makes one cubin, so it takes one architecture, not {', '.join(archs)}.")
    check_options_agree(archs, named)
    return archs[0]


def check_options_agree(archs: Iterable[str], option_archs: Iterable[str]) -> None:
    """Raise ToolchainError if the compiler's options select architectures, and none of them fits one of `archs`."""
    archs, named = tuple(archs), tuple(map(machine_arch, option_archs))
    if named and not any(runs_on(name, arch) for name in named for arch in archs):
        raise ToolchainError(
            Argument("arch"),
            f" is {', '.join(archs)}, and the compiler options are for {', '.join(named)}: leave one of them out",
        )


def _split_names(arch: str | Iterable[str]) -> Sequence[str]:
    if isinstance(arch, str):
        return _split_list(arch)
    if isinstance(arch, bytes) or not isinstance(arch, Iterable):
        raise ToolchainError(
            Argument("arch"), f" must be a str such as 'sm_90a', or several, got {type(arch).__name__}"
        )
    return [str(name) for name in arch]


@functools.lru_cache(maxsize=64)
def _split_list(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").replace(";", " ").split())


def _resolve_name(name: str, settings: Settings, *, may_be_cpu: bool) -> tuple[str, ...]:
    if name != "native":
        return (canonical_arch(name),)
    if capability := current_capability():
        return (native_arch(capability),)
    if names := [name for name in _split_list(settings.arch) if name != "native"]:
        return tuple(canonical_arch(name, settings.arch_variable) for name in names)
    error = driver_error()
    if may_be_cpu and not error and settings.mode != "load-only":
        warn_once(_CPU_WARNING)
        return (CPU,)
    problem = f"the CUDA driver does not start (error {error})" if error else "there is none here"
    raise ToolchainError(Argument("arch", "native"), f" needs a GPU, and {problem}. ", NATIVE_HINT)


def native_arch(capability: tuple[int, int]) -> str:
    """Return the architecture of GPUs of a compute capability, with its suffix: `sm_90a` for (9, 0)."""
    number = 10 * capability[0] + capability[1]
    return f"sm_{number}a" if number >= _FIRST_WITH_SUFFIX else f"sm_{number}"


@functools.lru_cache(maxsize=64)
def canonical_arch(name: str, variable: str = "arch") -> str:
    """Return the canonical name of an architecture: `sm_90a` for `90a` and `9.0a`, and `compute_90` for itself."""
    if name.strip() == CPU:
        return CPU
    if match := _ARCH.fullmatch(name.strip()):
        prefix = _PTX_PREFIX if is_ptx(name.strip()) else "sm_"
        return f"{prefix}{match[1] or match[3] + match[4]}{match[2] or match[5] or ''}"
    raise ToolchainError(Argument(variable, name), " is not an architecture; write 'sm_90a', '9.0a' or 'native'.")


def capability_of(arch: str) -> tuple[int, str]:
    """Return the number and the suffix of an architecture: (90, "a") for `sm_90a`."""
    match = _ARCH.fullmatch(arch)
    assert match is not None
    return int(match[1]), match[2]


def is_ptx(arch: str) -> bool:
    """Return whether the name of an architecture stands for PTX, such as `compute_90`, and not for machine code."""
    return arch.startswith(_PTX_PREFIX)


def machine_arch(arch: str) -> str:
    """Return the architecture for which PTX is written: `sm_90` for `compute_90`. Other names stay the same."""
    return arch.replace(_PTX_PREFIX, "sm_", 1)


def runs_on(code_arch: str, arch: str) -> bool:
    """Return whether code for `code_arch` runs on every GPU of the architecture `arch`.

    PTX without a suffix, `compute_80`, runs on GPUs of this and of every newer architecture. For machine code, and for
    PTX with the suffix `f`, the major version must be the same. With the suffix `a`, only one architecture is possible.
    """
    (code_number, suffix), (number, _) = capability_of(code_arch), capability_of(arch)
    if is_ptx(arch):  # stands for many architectures
        return code_arch == arch or (is_ptx(code_arch) and not suffix and code_number <= number)
    if suffix == "a":
        return machine_arch(code_arch) == arch
    is_same_major = code_number // 10 == number // 10
    return code_number <= number and (is_same_major or (is_ptx(code_arch) and not suffix))


# ---- the driver --------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def load_driver() -> ctypes.CDLL | None:
    """Return libcuda, or None if there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def driver_version() -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver runs, (13, 0), or None without a driver. This needs no cuInit."""
    driver, number = load_driver(), ctypes.c_int()
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    return number.value // 1000, number.value % 1000 // 10


def current_capability() -> tuple[int, int] | None:
    """Return the compute capability of the current GPU, or None without a GPU.

    The current GPU is the thread's current device, or device 0 if the thread has none. The function may call `cuInit`:
    a process that forks afterwards cannot use CUDA in the child.
    """
    device = _current_device()
    major, minor = (None if device is None else _attribute(device, number) for number in (_MAJOR, _MINOR))
    return None if major is None or minor is None else (major, minor)


def device_attribute(number: int) -> int | None:
    """Return an attribute of the current GPU by the driver's number, or None without a GPU."""
    device = _current_device()
    return None if device is None else _attribute(device, number)


def _current_device() -> int | None:
    driver, device = load_driver(), ctypes.c_int()
    if driver is None:
        return None
    if driver.cuCtxGetDevice(ctypes.byref(device)) != 0:
        device.value = 0  # the thread has no context yet; the CUDA runtime would use device 0, too
        if driver.cuInit(0) != 0:
            return None
    return device.value


@functools.lru_cache(maxsize=64)
def _attribute(device: int, number: int) -> int | None:
    driver, value = load_driver(), ctypes.c_int()
    assert driver is not None
    return None if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device) else value.value


def driver_error() -> int:
    """Return the CUresult of `cuInit`, but 0 if there is no driver or no GPU."""
    driver = load_driver()
    status = 0 if driver is None else int(driver.cuInit(0))
    return 0 if status == _NO_DEVICE else status
