"""Tunes the functions of many requests, here or in an executor: `jitload tune`."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

from jitload.errors import JitLoadError
from jitload.measuring.tuning import Tuning
from jitload.pipeline import load_request
from jitload.prebuilding.requests import import_object, portable_request, read_request
from jitload.toolchain.arch import CPU

_TENSOR = re.compile(r"(\w+)\[([\d, ]*)\]")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def tune_requests(
    requests: Sequence[Any],
    executor: Executor | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Tuning:
    """Run the jobs in requests, `request["tune"]`, and return all measurements.

    A job is a mapping with the name of a `function`, its `args`, and options of `jitload.tune`. In place of a tensor,
    `args` may have a text such as `"float16[4096, 1024]"`, and `reference` may be `"module:name"`.

    Args:
        requests: Requests as for `prebuild`, with the key `tune`.
        executor: An executor of `concurrent.futures`, such as `gpu_executor()` or Dask's `client.get_executor()`. Each
            of its workers needs a GPU of its own. By default, this process runs one job after another.
        output: A file to which the measurements are added after each job. It is created first, so that a request's
            `tuned=` may name it.
        **options: Options of `jitload.tune` for all jobs.

    Raises:
        JitLoadError: A job has failed, or no request has a job. The other jobs are run.
    """
    if output is not None:
        Tuning([]).save(output)
    jobs = [(portable_request(request), {**options, **job}) for request in requests for job in request.get("tune", ())]
    if not jobs:
        raise JitLoadError('no request has jobs: "tune": [{"function": "f", "args": ["float32[4096]"]}]')
    measured, failures = Tuning([]), []
    for result in (executor.map if executor else map)(run_job, *zip(*jobs, strict=True)):
        if isinstance(result, str):
            failures.append(result)
        else:
            measured |= result
            if output is not None:
                result.save(output)
    if failures:
        raise JitLoadError("\n".join((f"{len(failures)} of {len(jobs)} jobs failed", *failures)))
    return measured


def gpu_executor() -> ProcessPoolExecutor:
    """Return an executor with a process for each GPU, the only one that it sees. Without a GPU, there is one process.

    The processes import the main script, so a script needs `if __name__ == "__main__":`.
    """
    import torch

    visible = torch.cuda.device_count()
    names = os.environ.get(_VISIBLE, ",".join(map(str, range(visible)))).split(",")
    gpus = names[: max(1, visible)]
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    for gpu in gpus:
        queue.put(gpu)
    return ProcessPoolExecutor(len(gpus), mp_context=context, initializer=_use_gpu, initargs=(queue,))


def _use_gpu(queue: Any) -> None:
    os.environ[_VISIBLE] = queue.get()


def run_job(request: Mapping[str, Any], job: Mapping[str, Any]) -> Tuning | str:
    """Run a job in this process, and return its measurements, or the text of its error."""
    try:
        loaded, is_verbose = read_request(request, "module"), bool(request.get("verbose"))
        function = load_request(loaded, verbose=is_verbose)[job["function"]]
        options = {name: value for name, value in job.items() if name not in ("function", "args")}
        if isinstance(reference := options.get("reference"), str):
            options["reference"] = import_object(reference, f"reference={reference!r}")
        device = "cpu" if loaded.archs == (CPU,) else "cuda"
        return function.tune(*(_argument(value, device) for value in job.get("args", ())), **options)
    except Exception as error:  # noqa: BLE001  what a kernel or a reference raises
        return f"{request.get('name')}, {job.get('function')}(): {error!r}"


def _argument(value: Any, device: str) -> Any:
    """Return an argument of a call. A text such as `float32[4096]` is a tensor of random numbers, or of zeros."""
    if not isinstance(value, str):
        return value
    import torch

    match = _TENSOR.fullmatch(value.strip())
    dtype = getattr(torch, match[1], None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise JitLoadError(f'args has {value!r}: a tensor is written "float32[4096, 1024]"')
    make = torch.rand if dtype.is_floating_point else torch.zeros
    return make([int(extent) for extent in match[2].split(",") if extent.strip()], device=device).to(dtype)
