"""The class `Judge`, which says what candidates are: right, wrong, broken, endless or cheating."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from typing import Any

from jitload.building.progress import progress_bar
from jitload.building.resources import core_count
from jitload.cache.entry import find_cache_dir
from jitload.errors import JitLoadError
from jitload.judging.problem import Case, Problem, read_source
from jitload.judging.processes import START_S, CandidateProcess, Processes
from jitload.judging.records import Answer, Candidate, Rejected, Verdict, make_candidate
from jitload.measuring.clocks import HOST_CLOCK, Clock
from jitload.measuring.difference import Tolerance
from jitload.settings import parse_size, read_settings
from jitload.toolchain.private_files import load_json, save_json

_DELAYS_MS = (5, 50, 200)
_FAKE_S = 10.0
_MIN_SAMPLES, _MAX_SAMPLES = 5, 50
_MAX_WORKERS = 8
_KEPT_JUDGES = 2  # in a worker of an executor
_LATE_US, _LATE_SHARE = 3.0, 0.1  # how long other streams may seem to work on after a call
_UNSEEN_US, _UNSEEN_FACTOR = 5000.0, 3.0  # how much longer than its events a call may take by the judge's clock
_CLOCK_TRIES = 10
_NULL_FACTOR = 1.5  # how much longer its inputs and results may be on their way than those of a rehearsal
_measuring = threading.Lock()


class Judge:
    """Runs generated kernels in processes of their own, and says what each of them is.

    A judge is a context manager. It calls each candidate with new inputs, and compares the results with those of the
    reference, which only this process knows. It is no security boundary: see the manual.

    Args:
        reference: A function that is right. It returns the results, or writes them to its arguments. Or the path of a
            Python file that defines `reference` and `inputs`, or in the form of KernelBench, `Model`, `get_inputs` and
            `get_init_inputs`.
        inputs: A function that returns new arguments, with random values and always the same shapes.
        outputs: The arguments that candidates write to, by name or position. By default, those that the reference
            changes. If it returns its results, the last arguments, provided that they fit and it does not read them.
        timeout: How long the calls of a candidate may take in all, in seconds. Compiling and loading it has a limit of
            its own: two minutes, or `timeout` if that is longer.
        memory: How much memory its processes may use, such as "4GB".
        rtol: The allowed relative difference, as for `jitload.compare`. For KernelBench's problems, it is by default
            0.01, or less if results for different inputs would then seem to be equal.
        atol: The allowed absolute difference, likewise.
        seconds: Roughly how long to measure a candidate. With 0, nothing is measured.
        flush_l2: Whether the L2 cache of a GPU is emptied before each call that is measured.
        allow_torch: Whether a candidate may compute its result with the same operators of torch as the reference.
        remember: Whether a candidate that hung is remembered in the cache and not run again.

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
        outputs: Any = None,
        timeout: float = 20.0,
        memory: str | int = "4GB",
        rtol: float | None = None,
        atol: float | None = None,
        seconds: float = 0.5,
        flush_l2: bool = True,
        allow_torch: bool = False,
        remember: bool = True,
    ) -> None:
        if isinstance(reference, str | Path):
            reference = Path(reference).absolute()  # a worker may have another working directory
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        self._token = secrets.token_hex(8)
        try:
            size = parse_size(str(memory))
        except ValueError as error:
            raise JitLoadError(f"memory={memory!r}: {error}") from None
        if not timeout > 0 or not seconds >= 0 or not size > 0:
            raise JitLoadError(f"timeout={timeout!r}, memory={memory!r} and seconds={seconds!r} must be positive")
        names = ("timeout", "seconds", "flush_l2", "allow_torch", "remember")
        limits = {"memory": size, **{name: self._arguments[name] for name in names}}
        self._problem = Problem(read_source(reference, inputs), outputs, Tolerance(rtol, atol), limits)
        self._hangs = find_cache_dir(read_settings()) / ".tools"
        self._processes = Processes(self._problem.setup)
        weakref.finalize(self, self._processes.close).atexit = False  # or a fork of this process would end them

    def __enter__(self) -> Judge:  # noqa: PYI034  Self is in typing since Python 3.11
        self._processes.start()
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
                of `jitload.load_triton` by names.
            **options: `name` for the verdict, `function` to name the function to call if there are several, and other
                arguments of `load_inline`, such as `extra_cuda_cflags`.

        Returns:
            The verdict. A broken candidate is no error.

        Raises:
            JitLoadError: An argument is invalid, or the judge's own processes have died.
        """
        functions = self._problem.source.functions if functions is None else functions
        return self._judge(make_candidate(candidate, functions, **options))

    def _judge(self, candidate: Candidate) -> Verdict:
        setup = self._problem.setup
        facts = repr((*candidate[1:], setup[:3]))  # all but the name
        hang, known = self._hangs / f"hang-{hashlib.sha256(facts.encode()).hexdigest()[:32]}", 0.0
        with suppress(OSError, ValueError, RecursionError):
            known = float(str(load_json(hang)))
        if setup.remember and known >= setup.timeout:
            reason = f"it was not done after {known:g} s in an earlier run, so it was not run again"
            return Verdict(name=candidate.name, stage="hang", reason=reason)
        started = time.monotonic()
        process, verdict = self._try(candidate, self._processes)
        if process.is_lost:  # perhaps because of another candidate, so it is judged with a template of its own
            with closing(Processes(setup)) as alone:
                process, verdict = self._try(candidate, alone)
        if process.stage == "start":
            raise JitLoadError(f"a candidate cannot be judged: {verdict['reason']}:\n{process.output}")
        if setup.remember and verdict["stage"] == "hang" and process.stage == "launch":
            save_json(hang, setup.timeout)
        return Verdict(name=candidate.name, output=process.output, seconds=time.monotonic() - started, **verdict)

    def _try(self, candidate: Candidate, processes: Processes) -> tuple[CandidateProcess, dict[str, Any]]:
        """Return the process of a candidate, which has ended, and attributes of the verdict."""
        process = processes.take()
        try:
            return process, _Trial(self._problem, candidate, process).verdict()
        finally:
            process.end()

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
            executor: An executor of `concurrent.futures`, such as Dask's `client.get_executor()`. Each of its workers
                has a judge of its own, so it should have a GPU of its own. `reference` and `inputs` must be picklable.
            progress: Whether to show a progress bar, on a terminal or in a notebook.
        """
        if isinstance(candidates, str | bytes | Mapping):
            raise JitLoadError(f"candidates must be an iterable of candidates, got {type(candidates).__name__}")
        functions = self._problem.source.functions if functions is None else functions
        items = [item if isinstance(item, Mapping) else {"candidate": item} for item in candidates]
        made = [make_candidate(**{"candidate": None, "functions": functions, **item}) for item in items]
        if executor is not None:
            futures = [executor.submit(_judge_elsewhere, self._token, self._arguments, one) for one in made]
            return _in_order(futures, None, is_shown=progress)
        threads = ThreadPoolExecutor(workers or min(core_count(), _MAX_WORKERS), thread_name_prefix="jitload-judge")
        return _in_order([threads.submit(self._judge, one) for one in made], threads, is_shown=progress)


def _in_order(futures: list[Future[Verdict]], threads: Executor | None, *, is_shown: bool) -> Iterator[Verdict]:
    try:
        with progress_bar(is_shown=is_shown and bool(futures)) as show:
            for number, future in enumerate(futures):
                verdict = future.result()
                if show:
                    show(f"judge: {verdict.stage}", number + 1, len(futures))
                yield verdict
    finally:
        for future in futures:
            future.cancel()
        if threads:
            threads.shutdown()


_judges: dict[str, Judge] = {}  # of a worker of an executor, the last used one last
_judges_lock = threading.Lock()


def _judge_elsewhere(token: str, arguments: Mapping[str, Any], candidate: Candidate) -> Verdict:
    with _judges_lock:
        judge = _judges[token] = _judges.pop(token) if token in _judges else Judge(**arguments)
        for old in [*_judges][:-_KEPT_JUDGES]:
            del _judges[old]  # its processes end when nothing uses it
    return judge._judge(candidate)  # noqa: SLF001


# ---- one candidate ---------------------------------------------------------------------------------------------------


class _Trial:
    """The trial of one candidate."""

    def __init__(self, problem: Problem, candidate: Candidate, process: CandidateProcess) -> None:
        self._problem, self._setup, self._candidate, self._process = problem, problem.setup, candidate, process
        self._starts, self._calls, self._null_us = problem.starts(), 0, 0.0

    def verdict(self) -> dict[str, Any]:
        """Return attributes of the verdict."""
        try:
            self._process.prepare()
            self._null_late_us = min(answer.late_us for answer in self._rehearse())
            stage = "compile" if self._candidate.kind in ("cuda", "torch") else "load"
            self._process.begin(stage, max(self._setup.timeout, START_S))
            registers = self._process.load(self._candidate).registers
            self._process.begin("launch", self._setup.timeout)
            return {"stage": "ok", "registers": registers or None, **self._run()}
        except Rejected as rejection:
            return rejection.facts

    def _rehearse(self) -> list[Answer]:
        """Measure how long a call takes that computes nothing. Keep the longest of such times."""
        answers = [self._process.ask("call", "rehearse", self._starts, 0, 0) for _ in range(3)]
        self._null_us = max(self._null_us, min(answer.seen_us for answer in answers))
        return answers

    def _run(self) -> dict[str, float]:
        """Call the candidate in all ways. Return its time and that of the reference."""
        answer, _ = self._call("trace")
        shared = self._shared_operators((*answer.operators, *answer.everywhere))
        if shared and shared == self._problem.operators:
            reason = "it computes the result with the operators of torch of the reference"
            raise Rejected("cheat", f"{reason}: {', '.join(sorted(shared))}")
        self._check_order()
        self._call()
        times = self._measure() if self._setup.seconds else {}
        self._check_own_work(answer)
        return times

    def _call(self, kind: str = "measure", delay_ms: int = 0, clock: Clock = HOST_CLOCK) -> tuple[Answer, Case]:
        """Call the candidate with new inputs, and check all that it did. `clock` measures the reference."""
        shared = self._process.shared
        self._calls += 1  # addresses come again at each second call, for candidates that remember what was there
        starts = self._problem.starts() if self._calls % 2 else self._starts
        case = self._problem.new_case(shared, starts, clock)
        answer = self._process.ask("call", kind, case.starts, self._calls % 2, delay_ms)
        received = shared.clone()  # which no process can change while it is compared
        self._problem.check(case, received, answer, self._candidate.name)
        return answer, case

    def _check_order(self) -> None:
        """Call the candidate so that work that does not wait for the current stream comes before the inputs.

        If the delay was too short, or the candidate has waited for its end, try a longer one.
        """
        for delay_ms in _DELAYS_MS:
            answer, _ = self._call("delay", delay_ms)
            if answer.is_ordered:
                return

    def _shared_operators(self, names: Iterable[str]) -> frozenset[str]:
        """Return the operators of torch that the reference calls, too, if the candidate must not."""
        may_call = self._setup.allow_torch or self._candidate.kind not in ("python", "torch")
        return frozenset() if may_call else self._problem.operators & {*names}

    def _check_own_work(self, answer: Answer) -> None:
        """Reject a candidate that calls operators of torch as the reference does, and computes nothing itself.

        It can also be called with tensors that have no data. This may end the process, so it must be the last call.
        """
        shared = self._shared_operators(answer.operators)
        if not shared or any("." in name for name in answer.operators):
            return
        self._process.left_s = min(self._process.left_s, _FAKE_S)
        try:
            called = self._process.ask("call_without_data", self._starts).operators
        except Rejected:
            return
        if called == answer.operators:
            reason = "it computes nothing but with operators of torch, as the reference does"
            raise Rejected("cheat", f"{reason}: {', '.join(sorted(shared))}")

    def _measure(self) -> dict[str, float]:
        """Measure the candidate and the reference. Each sample has new inputs, and its results are checked."""
        samples: list[tuple[Answer, Case]] = []
        with _measuring, self._problem.clock() as clock:
            end = time.monotonic() + self._setup.seconds
            while len(samples) < _MIN_SAMPLES or (len(samples) < _MAX_SAMPLES and time.monotonic() < end):
                samples.append(self._call(clock=clock))
        self._rehearse()  # the machine may be busier than before
        self._check_order()
        typical, late = (median(getattr(answer, name) for answer, _ in samples) for name in ("us", "late_us"))
        late -= self._null_late_us
        if late > _LATE_US + _LATE_SHARE * typical:
            reason = f"its work goes on in other streams, for {late:.1f} µs after the call of {typical:.1f} µs"
            raise Rejected("cheat", reason)
        self._check_clock(typical, min(answer.seen_us for answer, _ in samples))
        return {"median_us": typical, "reference_us": median(case.reference_us for _, case in samples)}

    def _check_clock(self, typical_us: float, seen_us: float) -> None:
        """Reject a candidate whose calls all take much longer by the clock of this process, also if it is busy."""
        for _ in range(_CLOCK_TRIES):
            shortest = seen_us - _NULL_FACTOR * self._null_us
            if shortest <= _UNSEEN_FACTOR * typical_us + _UNSEEN_US:
                return
            self._rehearse()
            seen_us = min(seen_us, self._call()[0].seen_us)
        reason = f"a call takes {typical_us:.0f} µs by its process's clock, but {shortest:.0f} µs by that of the judge"
        raise Rejected("cheat", reason)
