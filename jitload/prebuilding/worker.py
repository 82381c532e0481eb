"""The worker of `prebuild`: a process on this machine or in a cluster that builds one request after another."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jitload.building.child_process import answer_questions
from jitload.errors import CompileError, JitLoadError
from jitload.settings import ARCH_LIST_VARIABLE

_PREFIX = "JITLOAD_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A request as it is sent to a worker.

    Attributes:
        number: The position of the task among all tasks.
        request: The keywords of `build_inline`, `build` or `load_triton`.
        environment: The environment variables that the worker copies from the caller.
        needs_caller: Whether only the caller's process can build the request.
        run: A random text for each call of `prebuild`. Without this text, Dask would run equal tasks only once.
    """

    number: int
    request: Mapping[str, Any]
    environment: tuple[tuple[str, str], ...] = ()
    needs_caller: bool = False
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a request.

    Attributes:
        name: The module's name.
        arch: The requested architectures.
        state: `"built"`, `"reused"` (the library was in the cache, or another process built it meanwhile), or
            `"failed"`.
        path: The path of the library, as the worker sees it.
        error: The first line of the error.
        log: The whole error message, with the compiler's output.
        seconds: How long the build took.
    """

    name: str
    arch: str
    state: Literal["built", "reused", "failed"]
    path: str = ""
    error: str = ""
    log: str = ""
    seconds: float = 0.0


def worker_environment(*, has_triton: bool = False) -> tuple[tuple[str, str], ...]:
    """Return (name, value) pairs for the environment variables that workers must have.

    They are the settings of jitload and, with `has_triton`, the variables that change what Triton compiles.
    """
    names = {name for name in os.environ if name.startswith(_PREFIX) or name == ARCH_LIST_VARIABLE}
    if has_triton:
        from jitload.triton.key import is_in_key

        names |= set(filter(is_in_key, os.environ))
    return tuple((name, os.environ[name]) for name in sorted(names))


def failure(task: Task, error: BaseException | str, seconds: float = 0.0) -> Outcome:
    """Return the outcome of a request that failed."""
    name, arch = _name_and_arch(task.request)
    message = f"{error}"  # str() of an error of jitload repeats the reason
    lines = message.strip().splitlines() or [""]
    first = lines[0] if isinstance(error, JitLoadError | str) else f"{type(error).__name__}: {lines[0]}"
    if isinstance(error, CompileError) and not error.diagnostics and (log := error.log.strip().splitlines()):
        first += f": {log[-1].strip()}"  # the last line, because Triton's message follows the lines of the source
    return Outcome(name=name, arch=arch, state="failed", error=first, log=message, seconds=seconds)


def _name_and_arch(request: Any) -> tuple[str, str]:
    fields = request if isinstance(request, Mapping) else {}
    arch = fields.get("arch", "native")
    archs = arch if isinstance(arch, list | tuple) else (arch,)
    return str(fields.get("name", "?"))[:80], ", ".join(map(str, archs))[:80]


def build_task(task: Task) -> Outcome:
    """Build a request in this process, and return its outcome, which may be a failure."""
    from jitload.prebuilding.requests import build_request

    started = time.monotonic()
    for name, value in task.environment:
        if os.environ.get(name) != value:  # other threads may read the environment, so only changes are written
            os.environ[name] = value
    try:
        entry = build_request(task.request)
    except Exception as error:  # noqa: BLE001  one failure must not stop the rest
        return failure(task, error, time.monotonic() - started)
    name, arch = _name_and_arch(task.request)
    state: Literal["built", "reused"] = "built" if entry.is_new else "reused"
    return Outcome(name=name, arch=arch, state=state, path=str(entry.product), seconds=time.monotonic() - started)


def serve() -> None:
    """Run a worker process: build one request after another, and answer with the outcomes.

    The answer to a request that cannot be read is an error message.
    """
    from jitload.cuda import isolated

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the build cleans up, as after Ctrl-C
    isolated.is_needed = False  # a crash of NVRTC ends this process only
    answer_questions(_answer)


def _answer(data: bytes) -> Outcome | str:
    try:
        build, task = pickle.loads(data)  # noqa: S301  the parent process wrote the data
    except Exception as error:  # noqa: BLE001  whatever a user's object raises
        return f"the request cannot be read in another process: {type(error).__name__}: {error}"
    outcome: Outcome = build(task)
    return outcome
