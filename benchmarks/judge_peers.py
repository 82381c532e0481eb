"""KernelBench's evaluation of the answers of judge.py, in a process that is replaced when an answer has broken it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import multiprocessing
import os
import sys
import time
import types
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from judge_answers import PROBLEM, Answer

_TRIALS, _MEASUREMENTS = 5, 100  # those of scripts/eval_from_generations.py
_UNUSED = ("requests", "datasets", "pydra", "openai", "litellm", "dotenv", "together", "google", "anthropic", "modal")


class Outcome(NamedTuple):
    """How an evaluation ended, how long it took, and whether it had a process of its own."""

    state: str
    seconds: float
    is_alone: bool
    detail: str = ""


class Evaluator:
    """Evaluates one answer after another in a child process."""

    def __init__(self, path: Path, builds: Path) -> None:
        self._path, self._builds, self._number = path, builds, 0
        self._child: Any = None

    def __enter__(self) -> Evaluator:  # noqa: PYI034  Self is in typing since Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def evaluate(self, answer: Answer, *, timeout_s: float, is_alone: bool) -> Outcome:
        """Evaluate an answer, in a new process if `is_alone` is true."""
        if is_alone:
            self._stop()
        started = time.perf_counter()
        if self._child is None:
            self._start()
        self._number += 1
        build_dir = self._builds / str(self._number)
        build_dir.mkdir()
        state, detail, is_broken = self._ask((answer.kind, answer.text, str(build_dir)), timeout_s)
        if is_broken or is_alone:
            self._stop()
        return Outcome(state, time.perf_counter() - started, is_alone, detail)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._child = context.Process(target=_serve, args=(str(self._path), theirs))
        self._child.start()
        theirs.close()

    def _stop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.join()
            self._connection.close()
        self._child = None

    def _ask(self, request: tuple[str, str, str], timeout_s: float) -> tuple[str, str, bool]:
        try:
            self._connection.send(request)
            if not self._connection.poll(timeout_s):
                return "timeout", "", True
            answer: tuple[str, str, bool] = self._connection.recv()
        except (EOFError, OSError):
            return "the process died", "", True
        return answer


def _serve(path: str, connection: Connection) -> None:
    evaluate = _import_evaluation(path)
    with open(os.devnull, "w") as null, contextlib.suppress(EOFError):
        while True:
            kind, text, build_dir = connection.recv()
            with contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
                answer = _outcome(evaluate, kind, text, build_dir)
            connection.send(answer)


def _outcome(evaluate: Any, kind: str, text: str, build_dir: str) -> tuple[str, str, bool]:
    """Return how an evaluation ends, why, and whether CUDA can no longer be used in this process."""
    import torch

    try:
        result = evaluate(
            original_model_src=PROBLEM, custom_model_src=text, measure_performance=True, verbose=False,
            num_correct_trials=_TRIALS, num_perf_trials=_MEASUREMENTS, build_dir=build_dir,
            device=torch.device("cuda:0"), backend="triton" if kind == "Triton" else "cuda",
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001  the script counts it as an answer that does not compile
        return "an error", f"{type(error).__name__}: {error}"[:300], True
    if result is None:
        return "to be repeated", "", False
    detail = str({name: value for name, value in result.metadata.items() if "traceback" not in name})[:300]
    state = "correct" if result.correctness else "not correct" if result.compiled else "not compiled"
    return state, detail, "CUDA error" in detail


def _import_evaluation(path: str) -> Any:
    """Return `eval_kernel_against_ref` of a checkout, with empty modules in place of those that it does not need."""
    sys.path.insert(0, str(Path(path, "src")))
    for name in _UNUSED:
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__getattr__ = lambda _: None  # type: ignore[method-assign]
    if importlib.util.find_spec("pydantic") is None:
        sys.modules["pydantic"] = types.ModuleType("pydantic")
        sys.modules["pydantic"].BaseModel = _Record  # type: ignore[attr-defined]
    if not Path(path, "src", "kernelbench", "dataset.py").exists():
        sys.modules["kernelbench.dataset"] = types.ModuleType("kernelbench.dataset")
    return importlib.import_module("kernelbench.eval").eval_kernel_against_ref


class _Record:
    """What KernelBench needs of pydantic: a class with default values."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)
