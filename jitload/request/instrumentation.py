"""`sanitize=` and `debug=`: sanitizers and debug information for kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jitload.errors import JitLoadError
from jitload.toolchain.arch import CPU

SANITIZERS = ("address", "undefined")


class Instrumentation(NamedTuple):
    """How kernels are instrumented. It is false if they are not instrumented.

    Attributes:
        sanitizers: The sanitizers of `sanitize=`, in the order of `SANITIZERS`.
        is_debug: Whether kernels are compiled for a debugger.
    """

    sanitizers: tuple[str, ...] = ()
    is_debug: bool = False

    def __bool__(self) -> bool:
        return self.is_debug or bool(self.sanitizers)


NO_INSTRUMENTATION = Instrumentation()


def read_instrumentation(sanitize: str | Iterable[str] | None, *, debug: bool) -> Instrumentation:
    """Check `sanitize=` and `debug=`.

    Raises:
        JitLoadError: A sanitizer is unknown.
    """
    if sanitize is None and not debug:
        return NO_INSTRUMENTATION
    value = () if sanitize is None else sanitize
    names = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if unknown := [name for name in names if name not in SANITIZERS]:
        raise JitLoadError(f"sanitize={unknown[0]!r} must be one of {', '.join(map(repr, SANITIZERS))}, or several")
    return Instrumentation(tuple(name for name in SANITIZERS if name in names), is_debug=bool(debug))


def check_instrumentation(instrumentation: Instrumentation, archs: Sequence[str], *, has_host_code: bool) -> None:
    """Raise an error if the code of a request cannot be instrumented.

    Raises:
        JitLoadError: The code is C++ written by hand, or kernels for a GPU are to be sanitized.
    """
    if instrumentation and has_host_code:
        raise JitLoadError("sanitize= and debug= are for kernels; for C++ of your own pass options in extra_cflags")
    if instrumentation.sanitizers and CPU not in archs:
        target = ", ".join(archs) or "that of the cubins"
        raise JitLoadError(f"sanitize= is for kernels on the CPU, but the architecture is {target}: pass arch='cpu'")
