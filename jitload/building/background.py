"""Runs a function on a separate thread while the build continues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_in_background(function: Callable[..., Result], *arguments: Any) -> Future[Result]:
    """Call a function on a daemon thread, and return the future of its result."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001  raised in the thread that asks for the result
            future.set_exception(error)

    threading.Thread(target=run, name="jitload-build", daemon=True).start()
    return future
