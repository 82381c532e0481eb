"""Runs a call on the GPU under NVIDIA's compute-sanitizer, and words its findings as the checks on the CPU do."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from jitload.checking.child import Call
from jitload.checking.copies import copy_arguments, is_array
from jitload.errors import ToolchainError
from jitload.loader.function import TypedFunction
from jitload.pipeline import load_request
from jitload.request.request import Request
from jitload.settings import read_settings
from jitload.toolchain.arch import CPU, resolve_gpu_arch
from jitload.toolchain.nvcc import find_compute_sanitizer

_PROGRAM = (
    "import sys; _, call, device, *sys.path[:] = sys.argv; from jitload.checking.child import run_call; "
    "run_call(call, device)"
)
_OPTIONS = ("--report-api-errors", "no", "--show-backtrace", "no", "--racecheck-report", "hazard", "--padding", "65536")
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_NEAR = 1 << 16  # an access within this many bytes of a tensor is assumed to be meant for it
_TRIPLE = r"\((\d+), ?(\d+), ?(\d+)\)"
_ACCESS = re.compile(
    rf"Invalid __(\w+)__ (\w+) of size ([\d,]+) bytes\s+at (.+)\s+by thread {_TRIPLE} in block {_TRIPLE}.*\s+"
    r"(?:Address|Access \w+) (0x[0-9a-f]+) (.*)"
)
_RACE = re.compile(
    rf"\w+ hazard detected at __shared__ (0x[0-9a-f]+) in block {_TRIPLE}.*\s+"
    rf"(\w+) Thread {_TRIPLE} at (.+)\s+(\w+) Thread {_TRIPLE} at (.+)"
)
_COUNT = re.compile(r"SUMMARY: (\d+) (?:error|hazard)")
_LINE = re.compile(r" in (\S+?:\d+)(?::|\s|$)")


class Region(NamedTuple):
    """The memory of a tensor in the process that ran the call."""

    name: str
    begin: int
    size: int


def check_on_gpu(function: TypedFunction, request: Request, args: Sequence[Any]) -> None:
    """Run a call on copies of its tensors on the GPU, with checks of addresses and then with checks of races.

    Raises:
        RuntimeError: compute-sanitizer has found something, or the call has failed.
        ToolchainError: compute-sanitizer was not found, or could not run the call.
    """
    import torch

    program = find_compute_sanitizer(read_settings())
    call = make_call(function, request, args)
    load_request(call.request, None, keep_module_alive=True, verbose=False)  # so that the build's errors come from here
    device = next((f"cuda:{arg.device.index}" for arg in args if getattr(arg, "is_cuda", False)), "cuda")
    for tool in ("memcheck", "racecheck"):
        with TemporaryDirectory(prefix="jitload-check-") as directory:
            torch.save(call, Path(directory, "call"))
            output = _run([str(program), "--tool", tool, *_OPTIONS], directory, device)
            _report(function, Path(directory), output)


def make_call(function: TypedFunction, request: Request, args: Sequence[Any]) -> Call:
    """Return a call on the GPU, with copies of the tensors."""
    import torch

    archs = tuple(arch for arch in request.archs if arch != CPU)
    request = request._replace(
        kind="device",
        archs=archs or resolve_gpu_arch("native", request.settings, subject='check(…, on="gpu") runs kernels'),
        options=(*request.options, "--generate-line-info"),
        settings=request.settings._replace(library="never"),
    )
    copies = copy_arguments(function, [torch.as_tensor(arg) if is_array(arg) else arg for arg in args])
    return Call(request, function.__name__, function._jitload_config[1:-1], tuple(copies))


def _run(command: Sequence[str], directory: str, device: str) -> str:
    """Run a call under compute-sanitizer, which writes to the file `log`, and return what it prints beside that."""
    environment = {name: value for name, value in os.environ.items() if name not in _ALLOCATOR_VARIABLES}
    child = [sys.executable, "-c", _PROGRAM, directory, device, *sys.path]
    try:
        result = subprocess.run(
            [*command, "--log-file", f"{directory}/log", *child],
            env=environment | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},  # one allocation for each tensor
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise ToolchainError(f"{command[0]} cannot be run: {error}") from error
    return result.stdout


def _report(function: TypedFunction, directory: Path, output: str) -> None:
    """Raise an error if compute-sanitizer has found something, or if the call or compute-sanitizer itself failed."""
    name, log = function.__name__, directory / "log"
    text = re.sub("^=+ ?", "", log.read_text(errors="replace"), flags=re.MULTILINE) if log.exists() else ""
    extents, outcome = (_read(directory / file) for file in ("extents", "outcome"))
    names = function.__signature__.parameters
    regions = [Region(name, *extent) for name, extent in zip(names, extents or (), strict=False) if extent]
    if finding := describe(text, regions):
        raise RuntimeError(f"{name}(): {finding}")
    count = _COUNT.search(text)
    if count is None or not (directory / "outcome").exists():
        raise ToolchainError(f"compute-sanitizer could not check {name}():\n{text}{output}{outcome or ''}".rstrip())
    if count[1] != "0":
        raise RuntimeError(f"{name}(): compute-sanitizer reports:\n{text.strip()}")
    if outcome is not None:
        raise outcome


def _read(path: Path) -> Any:
    return pickle.loads(path.read_bytes()) if path.exists() else None  # noqa: S301  from our own child


# ---- what compute-sanitizer prints ----------------------------------------------------------------------------------


def describe(text: str, regions: Sequence[Region]) -> str:
    """Return the first invalid access or race in the output of compute-sanitizer, or "" if there is none."""
    if access := _ACCESS.search(text):
        space, kind, size, code, *place, address, problem = access.groups()
        noun = _noun(kind) if "out of bounds" in problem else f"a misaligned {kind}"
        target = _target(space, int(address, 16), regions)
        return f"{noun} of {size} bytes {target} in {_point('block', place[3:])}, {_thread(place[:3], code)}"
    if race := _RACE.search(text):
        address, *block = race.groups()[:4]
        (kind, *thread, code), (last_kind, *last_thread, last_code) = race.groups()[4:9], race.groups()[9:]
        return (
            f"a race: {_noun(last_kind)} at address {address} of shared memory and another access are not ordered, "
            f"in {_point('block', block)}, {_thread(last_thread, last_code)}; the other is {_noun(kind)} by "
            f"{_thread(thread, code)}"
        )
    return ""


def _noun(kind: str) -> str:
    kind = kind.lower()
    return "an atomic operation" if kind.startswith("atom") else f"a {kind}"


def _point(word: str, numbers: Sequence[str]) -> str:
    return f"{word} ({', '.join(numbers)})"


def _thread(numbers: Sequence[str], code: str) -> str:
    """Return a thread with the line of its instruction, `kernel()+0x50 in vec.cu:4`, if there is one."""
    line = _LINE.search(code)
    return _point("thread", numbers) + (f", at {line[1]}" if line else "")


def _target(space: str, address: int, regions: Sequence[Region]) -> str:
    """Return the address of an access as the checks on the CPU word it."""
    if space != "global":
        return f"at address 0x{address:x} of {space} memory,"
    distances = {max(r.begin - address, address - r.begin - r.size, 0): r for r in reversed(regions)}
    if not distances or min(distances) > _NEAR:
        return f"at address 0x{address:x}, which is in no tensor,"
    name, begin, size = distances[min(distances)]
    if address < begin:
        return f"{begin - address} before the first byte of {name!r},"
    return f"at byte {address - begin} of {name!r}, which has {size} bytes,"
