"""The class `Judge`, which says what candidates are: right, wrong, broken, endless or cheating."""

from __future__ import annotations

import hashlib
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any

from jitload.building.progress import progress_bar
from jitload.building.resources import core_count
from jitload.cache.entry import find_cache_dir
from jitload.errors import JitLoadError
from jitload.judging.devices import open_device
from jitload.judging.problem import Problem
from jitload.judging.processes import START_S, CandidateProcess, Processes
from jitload.judging.records import Candidate, Rejected, Verdict
from jitload.measuring.difference import Tolerance
from jitload.settings import parse_size, read_settings
from jitload.toolchain.private_files import save_json

_MIN_SAMPLES, _MAX_SAMPLES = 5, 50
_MAX_WORKERS = 8
_TRIES = 3  # to start a process, which other candidates may end
_measuring = threading.Lock()


class Judge:
    """Runs generated kernels in processes of their own, and says what each of them is.

    A judge is a context manager. It calls each candidate with new inputs, and compares the results with those of the
    reference, which only this process knows. It is no security boundary: see the manual.

    Args:
        reference: A function that is right. It returns the results, or writes them to its arguments. If it returns
            them, a candidate may write them to the last arguments, provided that they fit and the reference does not
            read them. Or the path of a Python file that defines `reference` and `inputs`, or in the form of
            KernelBench, `Model`, `get_inputs` and `get_init_inputs`.
        inputs: A function that returns new arguments, with random values and always the same shapes.
        timeout: How long the calls of a candidate may take in all, in seconds. Compiling and loading it has a limit of
            its own: two minutes, or `timeout` if that is longer.
        memory: How much memory its processes may use, such as "4GB".
        rtol: The allowed relative difference, as for `jitload.compare`. For KernelBench's problems, it is by default
            0.01, or less if the results hardly depend on the inputs.
        atol: The allowed absolute difference, likewise.
        seconds: Roughly how long to measure a candidate, with at least five calls. With 0, these are only checked.
        flush_l2: Whether the L2 cache of a GPU is emptied before each call that is measured.

    Raises:
        JitLoadError: An argument is invalid.

    Example:
        >>> with jitload.Judge(reference=lambda x, y: x + 1, inputs=make_inputs) as judge:
        ...     print(judge.run(source, functions={"add_one": launch}))
    """

    def __init__(  # noqa: PLR0913  what to judge, and the limits
        self,
        *,
        reference: Any,
        inputs: Callable[[], Any] | None = None,
        timeout: float = 20.0,
        memory: str | int = "4GB",
        rtol: float | None = None,
        atol: float | None = None,
        seconds: float = 0.5,
        flush_l2: bool = True,
    ) -> None:
        if isinstance(reference, str | Path):
            reference = Path(reference).absolute()  # a worker may have another working directory
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        try:
            size = parse_size(str(memory))
        except ValueError as error:
            raise JitLoadError(f"memory={memory!r}: {error}") from None
        if not timeout > 0 or not seconds >= 0 or not size > 0:
            raise JitLoadError(f"timeout={timeout!r}, memory={memory!r} and seconds={seconds!r} must be positive")
        self._timeout, self._seconds = timeout, seconds
        self._problem = Problem(reference, inputs, Tolerance(rtol, atol), flush_l2=flush_l2, memory=size)
        self._hangs = find_cache_dir(read_settings()) / ".tools"
        self._processes = Processes(self._problem.setup)
        weakref.finalize(self, self._processes.close).atexit = False  # or a fork of this process would end them

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a worker of an executor have a judge of its own, which it keeps for the next candidates."""
        return _judge_in_worker, (pickle.dumps(self._arguments),)

    def __enter__(self) -> Judge:  # noqa: PYI034  Self is in typing since Python 3.11
        return self

    def close(self, *_: object) -> None:
        """End all processes of the judge."""
        self._processes.close()

    __exit__ = close

    def run(self, candidate: Any, functions: Any = None, **options: Any) -> Verdict:
        """Judge a candidate.

        Args:
            candidate: A text or a `Path`: CUDA C++, C++ for torch, a Python file with a class `ModelNew`, or one with a
                function of the same arguments as the reference, such as a launcher of a Triton kernel.
            functions: The argument `functions` of `jitload.load_inline`. For a file with a Triton kernel, the keywords
                of `jitload.load_triton` by names. Or the name of the function to call if there are several.
            **options: `name` for the verdict, and other arguments of `load_inline`, such as `extra_cuda_cflags`.

        Returns:
            The verdict. A broken candidate is no error.

        Raises:
            JitLoadError: An argument is invalid, or the judge's own processes have died.
        """
        return self._judge(self._made(candidate, functions, **options))

    def _made(self, candidate: Any, functions: Any = None, *, name: str = "", **options: Any) -> Candidate:
        if not isinstance(candidate, str | Path):
            raise JitLoadError(f"a candidate must be a text, a Path or a mapping, got {type(candidate).__name__}")
        if isinstance(candidate, Path):
            name, candidate = name or candidate.stem, candidate.read_text(encoding="utf-8", errors="replace")
        return Candidate(name or "candidate", candidate, functions or self._problem.functions, options)

    def _judge(self, candidate: Candidate) -> Verdict:
        facts = repr((*candidate[1:], self._problem.setup[:4], self._timeout))  # all but the name
        hang = self._hangs / f"hang-{hashlib.sha256(facts.encode()).hexdigest()[:32]}"
        if hang.exists():
            reason = f"it was not done after {self._timeout:g} s in an earlier run, so it was not run again"
            return Verdict(name=candidate.name, stage="hang", reason=reason)
        started = time.monotonic()
        for _ in range(_TRIES):
            process = self._processes.take()
            try:
                verdict = {"stage": "ok", **self._try(candidate, process)}
            except Rejected as rejection:
                verdict = rejection.facts
            finally:
                process.end()
            if process.stage != "start":  # otherwise, another candidate may have ended it or the template
                break
        else:
            raise JitLoadError(f"a candidate cannot be judged: {verdict['reason']}\n{verdict['diagnostics']}")
        if verdict["stage"] == "hang" and process.stage == "launch":
            save_json(hang, self._timeout)
        return Verdict(name=candidate.name, seconds=time.monotonic() - started, **verdict)

    def _try(self, candidate: Candidate, process: CandidateProcess) -> dict[str, Any]:
        """Call a candidate many times, with new inputs and checks each time, and return attributes of its verdict."""
        setup, operators = self._problem.setup, self._problem.operators
        excess_us = float("inf") if self._seconds else 0.0
        times: list[tuple[float, float]] = []
        registers = process.load(candidate, max(self._timeout, START_S)).registers
        process.begin("launch", self._timeout)
        call = partial(self._problem.call, process, candidate.name)
        if operators <= {*call("trace")[0].operators.split()} and operators:
            raise Rejected("cheat", f"it calls the operators of torch of the reference: {', '.join(sorted(operators))}")
        with _measuring, ExitStack() as resources:
            measure = open_device(setup.device, resources, flushes_l2=setup.flush_l2)
            end = time.monotonic() + self._seconds
            for number in range(_MAX_SAMPLES):
                # If the judge's clock has seen only longer times than that of the process, this process may be busy.
                if number >= _MIN_SAMPLES and time.monotonic() > end and excess_us <= 0:
                    break
                answer, reference_us, new_excess_us = call("call", measure)
                times.append((answer.us, reference_us))
                excess_us = min(excess_us, new_excess_us)
        us, reference_us = map(median, zip(*times, strict=True))
        if excess_us > 0:
            raise Rejected("cheat", f"its calls take {excess_us / 1000:.0f} ms more than by its process's clock")
        measured = {"median_us": us, "reference_us": reference_us} if self._seconds else {}
        return {"registers": registers or None, **measured}

    def map(
        self,
        candidates: Iterable[Any],
        functions: Any = None,
        *,
        workers: int | None = None,
        executor: Executor | None = None,
        progress: bool = True,
    ) -> Iterator[Verdict]:
        """Judge many candidates, and yield the verdicts in order, as they come.

        Several candidates are compiled and checked at a time. Only one is measured at a time.

        Args:
            candidates: Texts, paths, or mappings with the keywords of `run`.
            functions: The default for `functions`.
            workers: How many candidates are judged at a time. The default depends on the number of cores.
            executor: An executor of `concurrent.futures`, such as Dask's `client.get_executor()`. Each of its processes
                has a judge of its own, so it should have a GPU of its own. `reference` and `inputs` must be picklable.
            progress: Whether to show a progress bar, on a terminal or in a notebook.
        """
        if isinstance(candidates, str | bytes | Mapping):
            raise JitLoadError(f"candidates must be an iterable of candidates, got {type(candidates).__name__}")
        items = [item if isinstance(item, Mapping) else {"candidate": item} for item in candidates]
        made = [self._made(**{"functions": functions, **item}) for item in items]
        pool = executor or ThreadPoolExecutor(workers or min(core_count(), _MAX_WORKERS), "jitload-judge")
        try:
            with progress_bar(is_shown=progress and bool(made)) as show:
                for number, verdict in enumerate(pool.map(self._judge, made), 1):
                    if show:
                        show(f"judge: {verdict.stage}", number, len(made))
                    yield verdict
        finally:
            if not executor:
                pool.shutdown(cancel_futures=True)


@lru_cache(2)
def _judge_in_worker(arguments: bytes) -> Judge:
    return Judge(**pickle.loads(arguments))  # noqa: S301  of the program that uses the executor
