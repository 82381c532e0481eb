"""Decorators of public functions: their errors end at the caller's line, and torch.compile does not trace them."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from jitload.errors import JitLoadError

_log = logging.getLogger(__name__)
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
