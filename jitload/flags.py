"""Compiler flags as they are written for nvcc in, flags for NVRTC or for the host's compiler out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from jitload.errors import JitLoadError

# nvcc's options that mean something else to NVRTC, or nothing: the host's optimisation and its compiler.
_IGNORED = re.compile(
    r"-O[0-3]|--?expt-relaxed-constexpr|--?(?:expt-)?extended-lambda|-Xcompiler=.*|--compiler-options=.*|--?threads=.*|-t=\d+"
)
_TAKES_NEXT = {
    "-Xptxas": "--ptxas-options=", "--ptxas-options": "--ptxas-options=", "-Xcompiler": None,
    "--compiler-options": None,
    "-std": "--std=", "--std": "--std=", "-maxrregcount": "--maxrregcount=", "--maxrregcount": "--maxrregcount=",
    "-D": "-D", "-U": "-U", "-I": "-I", "--include-path": "-I", "--threads": None, "-t": None,
    "-include": "--pre-include=",
}  # fmt: skip
# What leaves no finished machine code behind, and what says where to put it.
_LINKED_LATER = re.compile(r"--?(?:rdc|relocatable-device-code)=true|-dc|--device-c|-dlto|--dlink-time-opt|-lto|--lto")
_OTHER_OUTPUT = re.compile(r"--?(?:ptx|cubin|fatbin|optix-ir)|-c|--compile|-o|--output-file|-dw|-dlink|--device-link")
_ARCH_OPTION = re.compile(r"--?(?:gpu-architecture|arch|gencode|generate-code|gpu-code|code)(?:=|$)")


def names_arch(flag: str) -> bool:
    """Tell whether an option says for which architecture code is made."""
    return _ARCH_OPTION.match(flag) is not None


def refuse_arch(flag: str, given_as: str = "extra_cuda_cflags") -> None:
    """Refuse an option that names an architecture."""
    if names_arch(flag):
        raise JitLoadError(f"{given_as} has {flag!r}: name architectures with arch=, such as arch='sm_90a'")


def _refuse(flag: str) -> None:
    refuse_arch(flag)
    if _LINKED_LATER.fullmatch(flag):
        raise JitLoadError(f"extra_cuda_cflags has {flag!r}: jitload does not link device code; include it instead")


def device_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Return `extra_cuda_cflags`, written for nvcc, as NVRTC's options.

    Host optimisation and host-compiler options have no meaning here and are left out; what NVRTC does not know it
    refuses itself.
    """
    result: list[str] = []
    waiting = iter(flags)
    for flag in waiting:
        _refuse(flag)
        if _OTHER_OUTPUT.fullmatch(flag):
            raise JitLoadError(f"extra_cuda_cflags has {flag!r}: jitload makes a cubin, and says where; leave it out")
        if flag in _TAKES_NEXT:
            value = next(waiting, None)
            if value is None:
                raise JitLoadError(f"extra_cuda_cflags ends with {flag!r}, which takes a value")
            if (prefix := _TAKES_NEXT[flag]) is not None:
                result.append(prefix + value)
        elif not _IGNORED.fullmatch(flag):
            result.append(re.sub("^--include-path=", "-I", flag))
    return tuple(result)


_TO_HOST = ("-Xcompiler", "--compiler-options")


def host_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Return of `extra_cuda_cflags` what the host's compiler is to get where `cuda_sources` is C++.

    That is what nvcc hands on to it: definitions, include directories, the standard, and what is marked for it.
    """
    result: list[str] = []
    waiting = iter(flags)
    for flag in waiting:
        name, equals, value = flag.partition("=")
        if name in _TO_HOST:
            result += (value if equals else next(waiting, "")).split(",")
        elif flag in ("-D", "-U", "-I"):
            result.append(flag + next(waiting, ""))
        elif flag in ("-std", "--std"):
            result.append("-std=" + next(waiting, ""))
        elif re.match(r"-[DUI]|--?std=|-O[0-3]$", flag):
            result.append(flag.replace("--std=", "-std="))
    return tuple(flag for flag in result if flag)


def nvcc_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Return `extra_cuda_cflags` for nvcc itself: as they are, but that include directories have one spelling."""
    result = []
    for flag in flags:
        _refuse(flag)
        result.append(re.sub(r"^--?include-path(?:=|$)", "-I", flag))
    return tuple(result)


def split_includes(flags: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Take the include directories out of flags: the build runs in another directory."""
    kept, dirs, waiting = [], [], iter(flags)
    for flag in waiting:
        if flag == "-I":
            dirs.append(Path(next(waiting, ".")))
        elif flag.startswith("-I"):
            dirs.append(Path(flag[2:]))
        else:
            kept.append(flag)
    return tuple(kept), tuple(dirs)
