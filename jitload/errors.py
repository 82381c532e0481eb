"""The exceptions that jitload raises, and warnings that are logged only once.

The tree of exceptions::

    RuntimeError
    └── JitLoadError
        ├── CompileError      a compiler rejected the source
        ├── SignatureError    a kernel's parameters cannot be read, or disagree with the cubin
        ├── LaunchSpecError   a `Launch` or one of its expressions is wrong
        ├── ToolchainError    NVRTC, the C++ compiler, ninja or an architecture is missing
        ├── CacheError        the cache cannot be read, written or trusted
        ├── LoadError         a library cannot be loaded
        └── MismatchError     `compare` found that two functions have different results

Calls of a typed function raise Python's TypeError, ValueError and RuntimeError instead, because only those can cross
tvm-ffi's C ABI. Exceptions store the facts of a failure as attributes and compose their text in `message`. The
last line of a traceback is the reason: `__str__` repeats the first line of a longer message.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

_log = logging.getLogger(__name__)


class JitLoadError(RuntimeError):
    """The base class of the errors that jitload raises when it compiles, builds, caches or loads.

    Attributes:
        code: The code of this kind of error in the manual.
    """

    code = "JL-REQUEST"

    def message(self) -> str:
        """Return what failed and why, on the first line, followed by details and advice.

        The parts that were passed to the error are joined. They may be arguments (`words.Argument`).
        """
        return "".join(map(str, self.args))

    def __str__(self) -> str:
        """Return the message. If it has several lines, repeat the first line at the end, below the advice."""
        message = self.message()
        first, *others = message.splitlines() or [""]
        return "\n".join((message, first.rstrip(" :"))) if others else message

    def __format__(self, spec: str) -> str:
        """Return the message for an f-string, which is usually the message of another error."""
        return format(self.message(), spec)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what pickle needs to restore the error.

        Some subclasses take keyword arguments, which are not in `args`.
        """
        return type(self).__new__, (type(self), *self.args), self.__dict__


class Diagnostic(NamedTuple):
    """One message of a compiler: its position in the source, severity and text."""

    file: str
    line: int
    severity: str
    message: str


def find_diagnostics(pattern: str | re.Pattern[str], log: str) -> tuple[Diagnostic, ...]:
    """Return the messages in a log. The pattern has a named group for each field of `Diagnostic`."""
    return tuple(Diagnostic(m["file"], int(m["line"]), m["severity"], m["message"]) for m in re.finditer(pattern, log))


STAGES = {"nvrtc": "NVRTC", "nvcc": "nvcc", "ptx": "the linker", "triton": "Triton", "host": "the C++ compiler"}


class CompileError(JitLoadError):
    """A compiler rejected a source.

    Attributes:
        stage: The compiler, a key of `jitload.errors.STAGES`, such as `"nvrtc"`.
        name: The module or file that was compiled.
        log: The compiler's output, word for word.
        diagnostics: The messages in the log; lines are counted in the user's own source.
        command: The command line or the options that were used.
        work_dir: The directory in which the failed build is kept; None if no build was started.
        hint: What to do next, if it is known.
        missing: Names of torch's that jitload's headers lack, if they are known without the compiler's output.
    """

    def __init__(  # noqa: PLR0913  the facts of one failure
        self,
        *,
        stage: str,
        name: str,
        log: str,
        diagnostics: tuple[Diagnostic, ...] = (),
        command: tuple[str, ...] = (),
        work_dir: Path | None = None,
        hint: str = "",
        missing: tuple[str, ...] = (),
    ) -> None:
        self.code = f"JL-{stage.upper()}"
        super().__init__(stage, name)
        self.stage = stage
        self.name = name
        self.log = log
        self.diagnostics = diagnostics
        self.command = command
        self.work_dir = work_dir
        self.hint = hint
        self.missing = missing

    def message(self) -> str:
        """Return the reason, the compiler's output, where to find the build, and the hint."""
        compiler = STAGES[self.stage]
        archs = [option.partition("=")[2] for option in self.command if option.startswith("--gpu-architecture=")]
        lines = [f"{compiler} could not compile {self.name!r}" + (f" for {archs[0]}" if archs else "")]
        if error := next((d for d in self.diagnostics if "error" in d.severity), None):
            lines[0] += f": {error.file}:{error.line}: {error.message}"
        elif match := re.search(r"^.*(?:\berror\b|undefined reference|: cannot find ).*$", self.log, re.MULTILINE):
            lines[0] += f": {match[0].strip()}"
        if self.log.strip():
            lines.append(self.log.rstrip())
        if self.command and self.stage in ("host", "nvcc"):
            lines.append("Command: " + " ".join(self.command))
        if self.work_dir is not None:
            lines.append(f"The failed build is kept in {self.work_dir}")
        if self.hint:
            lines.append(self.hint)
        return "\n".join(lines)


class SignatureError(JitLoadError):
    """A kernel's parameters cannot be read from its source, or disagree with the cubin."""

    code = "JL-SIGNATURE"


class LaunchSpecError(JitLoadError):
    """A `Launch`, a launch expression or `functions=` is malformed or does not match the kernel.

    Attributes:
        kernel: The name under which the kernel is exported.
        field: The part of the `Launch`, such as `"grid[0]"` or `"args['n']"`.
        expression: The text that was rejected.
        column: The position of the error in `expression`, counted from 0, or None.
        problem: What is wrong.
        hint: What to do next.
    """

    code = "JL-LAUNCH"

    def __init__(  # noqa: PLR0913  the facts of one failure
        self,
        problem: str,
        *,
        kernel: str = "",
        field: str = "",
        expression: str = "",
        column: int | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.kernel = kernel
        self.field = field
        self.expression = expression
        self.column = column
        self.hint = hint

    def message(self) -> str:
        """Return the reason, the expression, and the hint."""
        subject = ", ".join(part for part in (f"kernel {self.kernel!r}" if self.kernel else "", self.field) if part)
        lines = [f"{subject}: {self.problem}" if subject else self.problem]
        if self.expression:
            lines.append(f"    {self.expression}")
            if self.column is not None:
                lines.append("    " + " " * self.column + "^")
        if self.hint:
            lines.append(f"    {self.hint}")
        return "\n".join(lines)


class ToolchainError(JitLoadError):
    """A tool is missing, unknown or unsuitable; the message says how to get a suitable one."""

    code = "JL-TOOLS"


class CacheError(JitLoadError):
    """The cache cannot be read, written or trusted; the message names the directory and what to do."""

    code = "JL-CACHE"


class CacheWriteError(CacheError):
    """A build cannot be written to a directory that is full, read-only or gone; another directory may work."""


class LoadError(JitLoadError):
    """A library cannot be loaded; the message names the file and the reason."""

    code = "JL-LOAD"


class MismatchError(JitLoadError):
    """A function's results differ from those of the function that it was compared with.

    Attributes:
        function: The name of the function.
        output: The name of the result that differs.
        index: The index of the element with the largest difference; None if the shapes differ.
        difference: The largest difference; infinite if one of the two numbers is infinite or NaN.
    """

    code = "JL-MISMATCH"

    def __init__(
        self, message: str, *, function: str, output: str, index: tuple[int, ...] | None = None, difference: float = 0.0
    ) -> None:
        super().__init__(message)
        self.function = function
        self.output = output
        self.index = index
        self.difference = difference


def nearest_name(name: str, names: Iterable[str]) -> str:
    """Return the name that is most similar to `name`, ignoring case, or "" if none is similar."""
    import difflib  # imported here because most programs never need it

    by_lower_case = {candidate.lower(): candidate for candidate in names}
    matches = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
    return by_lower_case[matches[0]] if matches else ""


@functools.lru_cache(maxsize=64)
def warn_once(message: str, *, level: int = logging.WARNING) -> None:
    """Log a message, by default as a warning, unless the same message was logged before."""
    _log.log(level, "%s", message)
