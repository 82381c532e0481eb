"""Tunes the functions of many requests, here or in an executor: `jitload tune`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from importlib import import_module
from typing import Any

from jitload.errors import JitLoadError
from jitload.measuring.tuning import Tuning
from jitload.request.rows import read_rows
from jitload.request.tuned import Tuned
from jitload.toolchain.arch import CPU

JOBS = "tune"  # the key of a request that has its jobs
_TENSOR = re.compile(r"(\w+)\[([\d, ]*)\](?:=(.+))?")


def tune_requests(requests: Sequence[Any], executor: Executor | None = None, **options: Any) -> Tuning:
    """Run the jobs in requests, `request["tune"]`, and return all measurements.

    A job is a mapping with the name of a `function`, its `args`, and options of `jitload.tune`. In place of a tensor,
    `args` may have a text such as `"float16[4096, 1024]"` or `"int32[16]=3"`, and `reference` may be `"module:name"`.

    Args:
        requests: Mappings with the keywords of `load_inline` or `load`, and with the key `tune`.
        executor: An executor of `concurrent.futures`, such as Dask's `client.get_executor()`. Each of its workers needs
            a GPU of its own. By default, the jobs run one after another in this process.
        **options: Options of `jitload.tune` for all jobs.

    Raises:
        JitLoadError: A job is malformed, or no request has a job.
    """
    jobs = [(request, {**options, **job}) for request in requests for job in _jobs(request)]
    if not jobs:
        raise JitLoadError('no request has jobs: "tune": [{"function": "f", "args": ["float32[4096]"]}]')
    texts = executor.map(run_job, *zip(*jobs, strict=True)) if executor else (run_job(*job) for job in jobs)
    return Tuning(row for text in texts for row in read_rows(Tuned("a job", text)))


def _jobs(request: Any) -> Iterator[dict[str, Any]]:
    jobs = request.get(JOBS, ()) if isinstance(request, Mapping) else ()
    for job in [jobs] if isinstance(jobs, Mapping) else jobs:
        if not isinstance(job, Mapping) or "function" not in job:
            raise JitLoadError(f"a job must be a mapping with the name of a function, got {job!r}")
        yield dict(job)


def run_job(request: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    """Run a job in this process. Return the measurements as the text of a file."""
    from jitload.api import load, load_inline

    fields = {name: value for name, value in request.items() if name != JOBS}
    has_files = any(fields.get(name) for name in ("sources", "cuda_files", "cpp_files"))
    function = (load if has_files else load_inline)(**fields)[job["function"]]
    options = {name: value for name, value in job.items() if name not in ("function", "args")}
    if isinstance(options.get("reference"), str):
        options["reference"] = _import(options["reference"])
    device = "cpu" if [*function._jitload_facts["archs"]] == [CPU] else "cuda"  # noqa: SLF001
    args = [_argument(value, device) for value in job.get("args", ())]
    return function.tune(*args, **options).to_json()


def _import(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise JitLoadError(f"reference={path!r} must be module:name, such as 'torch:relu': {error}") from error


def _argument(value: Any, device: str) -> Any:
    """Return an argument of a call. A text such as `float32[4096]` is a tensor of random numbers, or of zeros."""
    if not isinstance(value, str):
        return value
    import torch

    match = _TENSOR.fullmatch(value.strip())
    dtype = getattr(torch, match[1], None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise JitLoadError(f'args has {value!r}: a tensor is written "float32[4096, 1024]" or "int32[16]=3"')
    shape = [int(extent) for extent in match[2].split(",") if extent.strip()]
    if match[3] is None and dtype.is_floating_point:
        return torch.rand(shape, device=device).to(dtype)
    return torch.full(shape, float(match[3] or 0), device=device).to(dtype)
