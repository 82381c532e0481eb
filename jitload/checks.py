"""`sanitize=` and `debug=` in, what they ask of kernels on the CPU out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jitload.errors import JitLoadError
from jitload.toolchain.arch import CPU

SANITIZERS = ("address", "undefined")
# What nvcc's options mean to the host's compiler. The others decide how a GPU's code is made.
_PASSED_ON = re.compile(r"-[DU].*|--?std=.*", re.DOTALL)
_TRANSLATED = {"--fmad=false": "-ffp-contract=off", "-fmad=false": "-ffp-contract=off"}
_OF_A_GPU = re.compile(
    r"--?(?:use_fast_math|fmad|ftz|prec-div|prec-sqrt|maxrregcount|ptxas-options|restrict|extra-device-vectorization"
    r"|device-debug|generate-line-info|lineinfo|dopt|split-compile|minimal|default-device|device-int128|time|fast-compile"
    r"|device-as-default-execution-space|no-source-include|no-cache|frandom-seed|optimization-info|version-ident|Ofast"
    r"|display-error-number|no-display-error-number|diag-[a-z-]+|disable-warnings|Werror|brief-diagnostics|modify-stack"
    r"-limit|builtin-[a-z-]+|unicode|pch[a-z-]*|relocatable-device-code|resource-usage|source-in-ptx|keep)"
    r"(?:[= ].*)?|-[Gw]",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """How the code of a library is to be watched: `sanitize` names sanitizers; `debug` is for gdb."""

    sanitize: tuple[str, ...] = ()
    debug: bool = False

    def __bool__(self) -> bool:
        return self.debug or bool(self.sanitize)


NO_CHECKS = Checks()
# These write and read for a kernel, and are watched where they are called.
WATCHED_LINK = ("-Wl,--wrap=memset", "-Wl,--wrap=memcpy", "-Wl,--wrap=memmove")
WATCHED_SHARED = "__jitload_dynamic_shared"  # where dynamic shared memory begins, for cpu_sanitize.cc
# A call before each access, and no memory of the sanitizer's own: cpu_sanitize.cc knows what a kernel may touch.
_OPTIONS = {
    "address": (
        "-fsanitize=kernel-address", "--param=asan-instrumentation-with-call-threshold=0", "--param=asan-stack=0",
        "--param=asan-globals=0", "-fno-builtin-memset", "-fno-builtin-memcpy", "-fno-builtin-memmove",
        "-fsanitize=bounds", "-fno-sanitize-recover=bounds",
    ),
    "undefined": (
        "-fsanitize=undefined", "-fsanitize=float-cast-overflow", "-fno-sanitize=vptr",
        "-fno-sanitize-recover=undefined,float-cast-overflow", "-fno-wrapv",
    ),
}  # fmt: skip


def read_checks(sanitize: str | Iterable[str] | None, *, debug: bool) -> Checks:
    """Check what a user gave.

    Raises:
        JitLoadError: A sanitizer is unknown.
    """
    if sanitize is None and not debug:
        return NO_CHECKS
    given = (sanitize,) if isinstance(sanitize, str) else () if sanitize is None else sanitize
    names = tuple(given) if isinstance(given, Iterable) else (given,)
    if unknown := [name for name in names if name not in SANITIZERS]:
        raise JitLoadError(f"sanitize={unknown[0]!r} must be one of {', '.join(map(repr, SANITIZERS))}, or several")
    return Checks(sanitize=tuple(name for name in SANITIZERS if name in names), debug=bool(debug))


def check_checks(checks: Checks, archs: Sequence[str], *, has_host_code: bool) -> None:
    """Refuse to watch what runs elsewhere.

    Raises:
        JitLoadError: There is nothing to watch.
    """
    if checks and has_host_code:
        raise JitLoadError("sanitize= and debug= are for kernels; for C++ of your own give options in extra_cflags")
    if checks.sanitize and CPU not in archs:
        on = ", ".join(archs) or "given with the cubins"
        raise JitLoadError(f"sanitize= watches kernels on the CPU, and the architecture is {on}: say arch='cpu'")


def check_options(checks: Checks) -> tuple[str, ...]:
    """Return the options of the host's compiler with which kernels are watched."""
    if not checks:
        return ()
    level = "-O0" if checks.debug else "-O1"
    return ("-g", "-gdwarf-4", level, *(option for name in checks.sanitize for option in _OPTIONS[name]))


def cpu_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return of NVRTC's options those that mean something to the host's compiler, in its spelling.

    Raises:
        JitLoadError: It is not known what an option means.
    """
    result = []
    for option in options:
        if option.startswith("--pre-include="):
            result += ["-include", option.removeprefix("--pre-include=")]
        elif option in _TRANSLATED:
            result.append(_TRANSLATED[option])
        elif _PASSED_ON.fullmatch(option):
            result.append(option.replace("--std", "-std", 1))
        elif not _OF_A_GPU.fullmatch(option):
            raise JitLoadError(
                f"extra_cuda_cflags has {option!r}, which means nothing on the CPU: give what its compiler is "
                "to get in extra_cflags"
            )
    return tuple(result)
