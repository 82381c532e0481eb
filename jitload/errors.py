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

import copy
import functools
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

if TYPE_CHECKING:
    import re

_log = logging.getLogger(__name__)


class JitLoadError(RuntimeError):
    """The base class of the errors that jitload raises when it compiles, builds, caches or loads.

    Attributes:
        code: The code of this kind of error in the manual.
    """

    code = "JL-REQUEST"

    def message(self) -> str:
        """Return what failed and why, on the first line, followed by details and advice."""
        return super().__str__()

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


class Argument:
    """An argument of one of Python's functions, or advice for Python, that a message of an error contains.

    A front end other than Python, such as the command line, shows its own option or advice instead: see `in_options`.

    Attributes:
        name: The argument's name, which is also the key of the front ends' tables. Advice has a key of its own.
        value: The values that the front end's option contains.
        python: The words for Python.
    """

    __slots__ = ("name", "python", "value")

    def __init__(
        self, name: str, value: str | tuple[str, ...] = (), *, python: str = "", is_name: bool = False
    ) -> None:
        self.name = name
        self.value = (value,) if isinstance(value, str) else value
        is_call = name.endswith("()")
        self.python = python or (name if is_name or is_call else f"{name}=" + (repr(value) if value != () else ""))

    def __str__(self) -> str:
        return self.python

    def in_option(self, options: Mapping[str, str]) -> str:
        """Return the option that `options` has for the argument, with the value. Without an option, return Python's."""
        option = options.get(self.name)
        if option is None:
            return self.python
        if "{" in option:
            return option.format(*self.value)
        return option + self.value[0] if self.value else option.rstrip(" =")


class Words(str):
    """The message of an error, or a part of one, that keeps the arguments in it apart from the words around them."""

    __slots__ = ("parts",)

    parts: tuple[str | Argument, ...]

    def __new__(cls, *parts: str | Argument) -> Words:  # noqa: PYI034  typing.Self needs Python 3.11
        """Make a message of strings, other messages, and arguments, which it shows as Python does."""
        words = super().__new__(cls, "".join(map(str, parts)))
        words.parts = parts
        return words

    def in_options(self, options: Mapping[str, str]) -> str:
        """Return the message with options in place of arguments."""
        return "".join(
            part.in_option(options) if isinstance(part, Argument)
            else part.in_options(options) if isinstance(part, Words)
            else part
            for part in self.parts
        )  # fmt: skip

    def __reduce__(self) -> tuple[Any, ...]:
        return Words, self.parts


P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=BaseException)


def outside_graphs(advice: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that keeps torch.compile from tracing a function.

    torch shows `advice` in its error, or in its message about the graph break. The decorator sets the same attributes
    as `torch.compiler.disable`, but does not import torch.
    """

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        function.__dict__.update(_torchdynamo_disable=True, _torchdynamo_disable_msg=advice)
        return function

    return mark


def at_caller(error: E) -> E:
    """Return an error without its traceback, to be raised again.

    The new traceback ends at the function that raises the error again. IPython shows the traceback only up to the last
    frame outside this package.
    """
    if "IPython" in sys.modules:
        error.__dict__["_render_traceback_"] = _render_last_error
    return error.with_traceback(None)


def _render_last_error() -> list[str]:
    """Return the lines that IPython shows for its last error.

    Frames of this package at the end of the traceback are left out.
    """
    from IPython import get_ipython

    # The error has this function as an attribute. If the function referred to the error, the reference cycle would keep
    # the tensors in the error's frames alive. So the error comes from `sys`.
    error: Any = sys.last_value
    last = traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__", "").partition(".")[0] != "jitload":
            last = traceback
        traceback = traceback.tb_next
    if last is not None:
        last.tb_next = None
    lines: list[str] = get_ipython().InteractiveTB.structured_traceback(type(error), error, error.__traceback__)
    return lines


def ends_at_caller(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that tracebacks of its errors end at the caller's line.

    Without this decorator, a notebook would show a page of this package's frames above the message. torch.compile does
    not trace the decorated function.
    """

    @outside_graphs(
        "jitload cannot build or load in functions that torch.compile compiles: do it before, at module level"
    )
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except JitLoadError as error:
            if _log.isEnabledFor(logging.DEBUG):
                raise
            raise at_caller(error) from None
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            raise at_caller(error) from None  # the call itself failed: its arguments are wrong

    return call


class Diagnostic(NamedTuple):
    """One message of a compiler: its position in the source, severity and text."""

    file: str
    line: int
    severity: str
    message: str


def find_diagnostics(pattern: re.Pattern[str], log: str) -> tuple[Diagnostic, ...]:
    """Return the messages in a log. The pattern has a named group for each field of `Diagnostic`."""
    return tuple(Diagnostic(m["file"], int(m["line"]), m["severity"], m["message"]) for m in pattern.finditer(log))


STAGES = {"nvrtc": "NVRTC", "nvcc": "nvcc", "ptx": "the linker", "triton": "Triton", "host": "the C++ compiler"}


class CompileError(JitLoadError):
    """A compiler rejected a source.

    Attributes:
        stage: `"nvrtc"`, `"nvcc"`, `"triton"`, `"ptx"` (the linker of PTX), or `"host"` (the C++ compiler).
        name: The module or file that was compiled.
        log: The compiler's output, word for word.
        diagnostics: The messages in the log; lines are counted in the user's own source.
        command: The command line or the options that were used.
        work_dir: The directory in which the failed build is kept; None if no build was started.
        hint: What to do next, if it is known.
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

    def message(self) -> str:
        """Return the reason, the compiler's output, where to find the build, and the hint."""
        compiler = STAGES[self.stage]
        archs = [option.partition("=")[2] for option in self.command if option.startswith("--gpu-architecture=")]
        lines = [f"{compiler} could not compile {self.name!r}" + (f" for {archs[0]}" if archs else "")]
        if error := next((d for d in self.diagnostics if "error" in d.severity), None):
            lines[0] += f": {error.file}:{error.line}: {error.message}"
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


def in_options(error: JitLoadError, options: Mapping[str, str]) -> str:
    """Return an error's message for a front end that has options in place of arguments.

    Args:
        error: The error.
        options: The option for each `Argument`, with the space or `=` before its value, `{"arch": "--arch "}`, or with
            the places of its values, `{"launch": "--launch '{0}: kernel={1}'"}`.
    """
    shown = copy.copy(error)
    shown.args = tuple(_in_options(value, options) for value in error.args)
    shown.__dict__.update({name: _in_options(value, options) for name, value in error.__dict__.items()})
    return str(shown)


def _in_options(value: Any, options: Mapping[str, str]) -> Any:
    return value.in_options(options) if isinstance(value, Words) else value


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
