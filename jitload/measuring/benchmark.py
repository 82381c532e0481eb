"""Measures one function: device time, host time, memory bandwidth and floating-point rate."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from numbers import Real
from typing import Any

from jitload.errors import JitLoadError
from jitload.measuring.clocks import HOST_CLOCK, Clock, Sample, cuda_clock
from jitload.measuring.memory import copy_tensor, extent_of, merge_extents, same_bits, tensors_in, written_arguments
from jitload.tables import Rates
from jitload.toolchain.arch import CPU, current_capability

_SAME_SHARE, _SAME_US = 0.15, 1.0  # times that differ by no more than this count as equal
_SHORT_US = 200.0  # a function that takes at least this long is called only once in each sample
_MIN_SAMPLES, _MAX_SAMPLES, _MAX_HOST_SAMPLES = 5, 500, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark(Rates):
    """How long a function takes.

    Attributes:
        function: The function's name.
        device: Where the function ran: `cpu`, or `cuda:0` with the GPU's name.
        median_us: The median of the samples, in microseconds of device time, or of wall time on the CPU. A sample is
            the mean time of `launches` launches.
        p10_us: The 10th percentile of the samples.
        p90_us: The 90th percentile of the samples.
        host_us: The median time until a call returned to Python; on the CPU, the same as `median_us`.
        samples: The number of samples.
        launches: The number of launches in each sample.
        restored: Whether the original values of the arguments were restored before each sample. If not, each launch
            starts from the results of the previous launch. False only for a short function whose results and time stay
            the same when it is repeated.
        flushed_l2: Whether the L2 cache was emptied before each sample.
        bytes: The bytes that a launch moves: the number that was passed, or an estimate.
        is_estimated: Whether `bytes` is an estimate: the sum of the tensors' sizes, in which a tensor that the function
            changes in place counts twice.
        flop: The number of floating-point operations of a launch, or None if it was not passed.
        peak_gb_per_s: The peak bandwidth of the device's memory in 10⁹ bytes per second, or None if it is not known.
    """

    function: str
    device: str
    median_us: float
    p10_us: float
    p90_us: float
    host_us: float
    samples: int
    launches: int
    restored: bool
    flushed_l2: bool
    bytes: int
    is_estimated: bool

    def __str__(self) -> str:
        parts = [f"{self.median_us:.2f} µs ({self.p10_us:.2f} to {self.p90_us:.2f})", f"host {self.host_us:.2f} µs"]
        if (rate := self.gb_per_s) is not None:
            share = f", {self.peak_share:.0%} of the peak" if self.peak_share is not None else ""
            parts.append(f"{rate:.1f} GB/s{' (estimated)' if self.is_estimated else ''}{share}")
        if (rate := self.flop_per_s) is not None:
            parts.append(f"{rate / 1e9:.1f} GFLOP/s")
        return f"{self.function} on {self.device}: {', '.join(parts)}"

    def __repr__(self) -> str:
        return f"<jitload benchmark {self.function}: {self.median_us:.2f} µs on {self.device}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `benchmark`, `compare` and `tune`, under the names that they have there.

    `stream` is the handle of the stream to measure in, or None for the current stream.
    """

    stream: int | None = None
    flush_l2: bool = False
    bytes: int | None = None
    flop: float | None = None
    restore: bool = False
    seconds: float = 0.25
    reference: Callable[..., Any] | None = None
    outputs: Sequence[str | int] | str | int | None = None
    rtol: float | None = None
    atol: float | None = None
    exact: bool = False
    graph: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        _check_number("seconds", self.seconds)
        for field in ("bytes", "flop", "rtol", "atol"):
            if getattr(self, field) is not None:
                _check_number(field, getattr(self, field), may_be_infinite=field in ("rtol", "atol"))
        if not self.seconds:
            raise ValueError(f"seconds={self.seconds}: it must be positive")
        for field in ("flush_l2", "restore", "exact", "graph"):
            if not isinstance(getattr(self, field), bool):
                raise TypeError(f"{field}={getattr(self, field)!r}: it must be True or False")
        if self.reference is not None and not callable(self.reference):
            kind = type(self.reference).__name__
            raise TypeError(f"reference= must be a function of the same arguments, got {kind}")


def _check_number(name: str, number: object, *, may_be_infinite: bool = False) -> None:
    """Raise TypeError or ValueError unless an argument is a number that is at least 0."""
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"{name}={number!r}: it must be a number, got {type(number).__name__}")
    try:
        value = float(number)
    except OverflowError:
        value = math.inf
    if not value >= 0:
        raise ValueError(f"{name}={value:g}: it must not be negative")
    if math.isinf(value) and not may_be_infinite:
        raise ValueError(f"{name}={value:g}: it must be finite")


def measure(function: Any, args: Sequence[Any], options: Options) -> Benchmark:
    """Measure how long calls of a function with these arguments take. Afterwards, restore the values of the tensors."""
    with open_clock([function], args, options) as clock:
        arguments = Arguments(args, written_arguments(function, args), clock)
        subject = Subject(function, arguments)
        with arguments:
            subject.prepare(options)
            for _ in range(subject.sample_count):
                subject.take_sample()
            return subject.result(options)


def open_clock(functions: Sequence[Any], args: Sequence[Any], options: Options) -> AbstractContextManager[Clock]:
    """Return a context manager for the clock of the GPU that the tensors are on, or else for the CPU's clock.

    Without tensors, a kernel for GPUs is measured with the clock of the current GPU.
    """
    extents = [extent_of(tensor) for tensor in tensors_in(tuple(args))]
    device = next((extent.device for extent in extents if extent.device is not None), None)
    if device is None and not extents and any(map(_runs_on_gpu, functions)):
        device = _current_device()
    if device is None:
        return nullcontext(HOST_CLOCK)
    return cuda_clock(device, options.stream, flushes_l2=options.flush_l2)


def _runs_on_gpu(function: Any) -> bool:
    facts = getattr(function, "_jitload_facts", {})
    return "kernel" in facts and any(arch != CPU for arch in facts.get("builds", (facts["arch"],)))


def _current_device() -> int | None:
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.cuda.current_device()) if torch.cuda.is_available() else None
    return 0 if current_capability() else None


class Arguments:
    """The arguments of calls. As a context manager, restores the original values of the tensors on exit."""

    def __init__(self, args: Sequence[Any], written: Sequence[bool], clock: Clock) -> None:
        self.values, self.clock = tuple(args), clock
        self.written = [arg for arg, is_written in zip(args, written, strict=True) if is_written]
        self.extents = [extent_of(tensor) for tensor in tensors_in(self.values)]
        self.written_extents = [extent_of(tensor) for tensor in tensors_in(self.written)]
        self._copies = [(extent, clock.save(extent)) for extent in merge_extents(self.written_extents)]

    def restore(self) -> None:
        """Restore the original values of the tensors, byte for byte, with the gaps between elements."""
        for extent, copy in self._copies:
            self.clock.restore(extent, copy)

    def __enter__(self) -> None:
        """Do nothing: the tensors were saved when this object was created."""

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Restore the original values of the tensors, and wait until the copies are complete.

        If the block has raised an error, ignore errors of the copies: after a failed kernel, every copy fails.
        """
        with suppress(JitLoadError) if error_type else nullcontext():
            self.clock.wait()
            self.restore()
            self.clock.wait()

    def outputs(self) -> list[Any]:
        """Return copies of the tensors that may have been written to."""
        copies = [copy_tensor(tensor) for tensor in tensors_in(self.written)]
        self.clock.wait()  # the copies may be made in another stream
        return copies


class Subject:
    """A function that is measured."""

    def __init__(self, function: Any, arguments: Arguments, name: str = "") -> None:
        self.name = name or str(getattr(function, "__name__", None) or type(function).__name__)
        self.sample_count = _MIN_SAMPLES
        self.function, self.arguments, self._clock = function, arguments, arguments.clock
        self._sample = Sample(self.call)
        self.needs_restore = False
        self._changes_in_place = False
        self._times: list[float] = []
        self._host_times: list[float] = []

    def call(self) -> Any:
        """Call the function once."""
        return self.function(*self.arguments.values)

    def run(self, overwrite: Callable[[], None] = lambda: None) -> Any:
        """Restore the arguments, call `overwrite`, and call the function. Return the result once the device is done."""
        self.arguments.restore()
        overwrite()
        result = self.call()
        self._clock.wait()
        return result

    def prepare(self, options: Options, *, restores: bool = False) -> None:
        """Warm up. Choose the number of samples, the launches in each sample, and whether to restore the arguments.

        With `restores`, they are restored also if the function does not need it.
        """
        self.run()
        self._changes_in_place = options.restore or self._differs_when_repeated()
        self._sample = Sample(self.call, restore=self.arguments.restore)
        if not self._clock.is_host:
            self._sample = self._sample._replace(host_us=self._clock.time_host(self._sample))
        is_short = self._clock.time(self._sample) < _SHORT_US
        self.needs_restore = self._changes_in_place or (is_short and not self._is_as_fast_when_repeated())
        if is_short and not (restores or self.needs_restore):
            self._sample = self._sample._replace(launches=3, restore=None)
            once = min(self._clock.time(self._sample) for _ in range(3))
            self._sample = self._sample._replace(launches=self._clock.batch(once, self._sample.host_us))
        start = time.perf_counter()
        self.take_sample()
        cost = time.perf_counter() - start
        self._times.clear()
        self._host_times.clear()
        self.sample_count = min(_MAX_SAMPLES, max(_MIN_SAMPLES, int(options.seconds / max(cost, 1e-6))))

    def _differs_when_repeated(self) -> bool:
        """Return whether a second call has different results if the arguments are not restored before it."""
        first = self.arguments.outputs()
        self.call()
        self._clock.wait()
        return not all(map(same_bits, first, self.arguments.outputs()))

    def _is_as_fast_when_repeated(self) -> bool:
        """Return whether a call takes the same time if the arguments are not restored before it.

        For example, sorting in place may be faster when the values are sorted already. The cache is emptied before both
        calls, because the copies that restore the arguments leave other lines in it than a call does.
        """
        if not self.arguments.written_extents:
            return True

        def restore() -> None:
            self.arguments.restore()
            self._clock.empty_cache()

        samples = [self._sample._replace(restore=before) for before in (restore, self._clock.empty_cache)]
        first, again = (min(self._clock.time(sample) for _ in range(5)) for sample in samples)
        return abs(first - again) <= _SAME_SHARE * first + _SAME_US

    def take_sample(self) -> None:
        """Measure one sample, and on a GPU also how long the host takes."""
        if not self._clock.is_host and len(self._host_times) < _MAX_HOST_SAMPLES:
            self._host_times.append(self._clock.time_host(self._sample))
            self._sample = self._sample._replace(host_us=_quantile(sorted(self._host_times), 0.5))
        self._times.append(self._clock.time(self._sample))

    def result(self, options: Options) -> Benchmark:
        """Return the `Benchmark` for the samples taken so far."""
        times = sorted(self._times)
        arguments = self.arguments
        twice = arguments.written_extents if self._changes_in_place else []
        estimate = sum(extent.size for extent in (*arguments.extents, *twice))
        peak = self._clock.peak_bytes_per_s
        return Benchmark(
            function=self.name,
            device=self._clock.device,
            median_us=_quantile(times, 0.5),
            p10_us=_quantile(times, 0.1),
            p90_us=_quantile(times, 0.9),
            host_us=_quantile(sorted(self._host_times) or times, 0.5),
            samples=len(times),
            launches=self._sample.launches,
            restored=self._sample.restore is not None,
            flushed_l2=options.flush_l2 and not self._clock.is_host,
            bytes=estimate if options.bytes is None else options.bytes,
            is_estimated=options.bytes is None,
            flop=options.flop,
            peak_gb_per_s=peak / 1e9 if peak else None,
        )


def restore_alike(subjects: Sequence[Subject], options: Options) -> None:
    """If the arguments of one of the prepared functions must be restored before each call, restore them for all."""
    if any(subject.needs_restore for subject in subjects):
        for subject in subjects:
            if not subject.needs_restore:
                subject.prepare(options, restores=True)


def take_turns(subjects: Sequence[Subject]) -> None:
    """Measure one sample of each function."""
    for subject in subjects:
        subject.arguments.restore()  # the previous function may have changed what this function reads
        subject.take_sample()


def _quantile(times: Sequence[float], share: float) -> float:
    return times[round(share * (len(times) - 1))]
