"""The worker of `prebuild`: builds one request after another, in a process of this machine or of a cluster."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from jitload.errors import CompileError, JitLoadError
from jitload.settings import UPSTREAMS_ARCH

_OURS = "JITLOAD_"
_LONGEST_SHOWN = 80  # of a name in the summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A request on its way to a worker, wherever that is.

    Attributes:
        number: Its place among the requests.
        request: The keywords of `build_inline`, `build` or `load_triton`.
        environment: The caller's variables that decide what is made; they hold for the worker, too.
        is_own: Whether only the caller's process can build it.
        run: What tells one `prebuild` from another: Dask answers a task that equals an earlier one without running it.
    """

    number: int
    request: Mapping[str, Any]
    environment: tuple[tuple[str, str], ...] = ()
    is_own: bool = False
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a request.

    Attributes:
        name: The module's name.
        arch: The architectures that were asked for.
        state: `"built"`, `"reused"` (it was in the cache, or another process built it meanwhile), or `"failed"`.
        path: The library, where the worker sees it.
        error: The first line of what went wrong.
        log: All of it, as the call itself would have raised it: with the compiler's words.
        seconds: How long it took.
    """

    name: str
    arch: str
    state: Literal["built", "reused", "failed"]
    path: str = ""
    error: str = ""
    log: str = ""
    seconds: float = 0.0


def own_environment(*, has_triton: bool = False) -> tuple[tuple[str, str], ...]:
    """Return the variables that a worker elsewhere takes over: what we read, and what changes what Triton makes."""
    names = {name for name in os.environ if name.startswith(_OURS) or name == UPSTREAMS_ARCH}
    if has_triton:
        from jitload.triton.key import is_in_key

        names |= set(filter(is_in_key, os.environ))
    return tuple((name, os.environ[name]) for name in sorted(names))


def failed(task: Task, error: BaseException | str, seconds: float = 0.0) -> Outcome:
    """Return the outcome of a request that went wrong."""
    name, arch = _names(task.request)
    lines = str(error).strip().splitlines() or [""]
    first = lines[0] if isinstance(error, JitLoadError | str) else f"{type(error).__name__}: {lines[0]}"
    if isinstance(error, CompileError) and not error.diagnostics and (said := error.log.strip().splitlines()):
        first += f": {said[-1].strip()}"  # Triton says where it was, shows the lines, and then what is wrong
    return Outcome(name=name, arch=arch, state="failed", error=first, log=str(error), seconds=seconds)


def _names(request: Any) -> tuple[str, str]:
    fields = request if isinstance(request, Mapping) else {}
    arch = fields.get("arch", "native")
    archs = arch if isinstance(arch, list | tuple) else (arch,)
    return _shown(fields.get("name", "?")), _shown(", ".join(map(str, archs)))


def _shown(value: object) -> str:
    text = "".join(c if c.isprintable() else "?" for c in str(value))
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def build_task(task: Task) -> Outcome:
    """Build what a request asks for, in this process, and return the outcome; an error is an outcome, too."""
    from jitload.prebuilding.requests import build_request

    started = time.monotonic()
    for name, value in task.environment:
        os.environ[name] = value
    try:
        entry = build_request(task.request)
    except Exception as error:  # noqa: BLE001  one failure must not stop the rest
        return failed(task, error, time.monotonic() - started)
    name, arch = _names(task.request)
    state: Literal["built", "reused"] = "built" if entry.is_new else "reused"
    return Outcome(name=name, arch=arch, state=state, path=str(entry.product), seconds=time.monotonic() - started)


def serve() -> None:
    """Build the requests that arrive on standard input, one after another: all that a worker process does.

    Each is answered on standard output, by an outcome, or by the reason why it could not be read.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the build is cleared up, as after Ctrl-C
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what tools print must not mix with the answers
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            data: bytes = pickle.load(requests)  # noqa: S301  from the process that started this one
            pickle.dump(_answer(data), answers)
            answers.flush()


def _answer(data: bytes) -> Outcome | str:
    try:
        build, task = pickle.loads(data)  # noqa: S301  as above
    except Exception as error:  # noqa: BLE001  whatever a user's object raises
        return f"the request cannot be read in another process: {type(error).__name__}: {error}"
    outcome: Outcome = build(task)
    return outcome
