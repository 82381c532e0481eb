"""Runs a call on the GPU under NVIDIA's compute-sanitizer, and words its findings as the checks on the CPU do."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jitload.checking.copies import copy_arguments, is_copied
from jitload.errors import ToolchainError
from jitload.loader.function import TypedFunction
from jitload.measuring.memory import extent_of
from jitload.pipeline import load_request
from jitload.request.request import Request
from jitload.settings import read_settings
from jitload.toolchain.arch import CPU, resolve_gpu_arch
from jitload.toolchain.host import run_tool
from jitload.toolchain.nvcc import find_compute_sanitizer

Region = tuple[str, int, int]  # the name, the address and the size of a tensor
Call = tuple[Request, str, tuple[Any, ...], list[Any]]  # a request, a function, its configuration and its arguments

_PROGRAM = (
    "import sys; _, call, device, *sys.path[:] = sys.argv; from jitload.checking.sanitizer import run_call; "
    "run_call(call, device)"
)
_OPTIONS = ("--report-api-errors", "no", "--show-backtrace", "no", "--racecheck-report", "hazard", "--padding", "65536")
# One allocation for each tensor.
_VARIABLES = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTORCH_ALLOC_CONF": "", "PYTORCH_CUDA_ALLOC_CONF": ""}
_NEAR = 1 << 16  # an access within this many bytes of a tensor is assumed to be meant for it
_ACCESS = re.compile(
    r"Invalid __(\w+)__ (\w+) of size ([\d,]+) bytes\s+at (.+)\s+by thread (\(.+?\)) in block (\(.+?\)).*\s+"
    r"(?:Address|Access \w+) (0x[0-9a-f]+) is (out of bounds|misaligned)"
)
_RACE = re.compile(
    r"hazard detected at __shared__ (0x[0-9a-f]+) in block (\(.+?\)).*\s+"
    r"(\w+) Thread (\(.+?\)) at (.+)\s+(\w+) Thread (\(.+?\)) at (.+)"
)


def check_on_gpu(function: TypedFunction, request: Request, args: Sequence[Any]) -> None:
    """Run a call on copies of its tensors on the GPU, with checks of addresses and then with checks of races."""
    import torch

    program = find_compute_sanitizer(read_settings())
    call = make_call(function, request, args)
    load_request(call[0])  # so that the build's errors come from here
    device = next((f"cuda:{arg.device.index}" for arg in args if getattr(arg, "is_cuda", False)), "cuda")
    for tool in ("memcheck", "racecheck"):
        with TemporaryDirectory(prefix="jitload-check-") as directory:
            torch.save(call, Path(directory, "call"))
            options = ("--tool", tool, *_OPTIONS, "--log-file", f"{directory}/log")
            child = (sys.executable, "-c", _PROGRAM, directory, device, *sys.path)
            result = run_tool((str(program), *options, *child), str(program), variables=_VARIABLES, timeout_s=None)
            _report(function.__name__, Path(directory), result.stdout + result.stderr)


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
    tensors = [torch.as_tensor(arg) if is_copied(arg) else arg for arg in args]
    return request, function.__name__, function._jitload_config[1:-1], copy_arguments(function, tensors)


def run_call(directory: str, device: str) -> None:
    """Run the call in the file `call`. Write the memory of its tensors, and its error or None, to the file `outcome`.

    This runs under compute-sanitizer.
    """
    import torch

    regions: list[Region] = []
    error: Exception | None = None
    try:
        # Tensors that share memory share it on the device, too.
        call: Call = torch.load(Path(directory, "call"), map_location=device, weights_only=False)
        request, name, config, args = call
        function = load_request(request)[name]
        named = zip(function.__signature__.parameters, args, strict=False)
        regions = [(parameter, *extent_of(arg)[:2]) for parameter, arg in named if is_copied(arg)]
        function._jitload_with((function._jitload_facts["index"], *config, None))(*args)
        if device != "cpu":
            torch.cuda.synchronize(device)
    except Exception as raised:  # noqa: BLE001  the parent raises it
        error = raised if type(raised).__module__ == "builtins" else RuntimeError(f"{type(raised).__name__}: {raised}")
    Path(directory, "outcome").write_bytes(pickle.dumps((regions, error)))


def _report(name: str, directory: Path, output: str) -> None:
    """Raise an error if compute-sanitizer has found something, or if the call or compute-sanitizer itself failed."""
    log, outcome = directory / "log", directory / "outcome"
    text = re.sub("^=+ ?", "", log.read_text(errors="replace"), flags=re.MULTILINE) if log.exists() else ""
    count = re.search(r"SUMMARY: (\d+) (?:error|hazard)", text)
    if count is None or not outcome.exists():
        raise ToolchainError(f"compute-sanitizer could not check {name}():\n{text}{output}".rstrip())
    regions, error = pickle.loads(outcome.read_bytes())  # noqa: S301  from our own child
    if count[1] != "0":
        raise RuntimeError(f"{name}(): " + (describe(text, regions) or f"compute-sanitizer reports:\n{text.strip()}"))
    if error is not None:
        raise error


def describe(text: str, regions: Sequence[Region]) -> str:
    """Return the first invalid access or race in the output of compute-sanitizer, or "" if there is none."""
    text = re.sub(r"\((\d+), ?(\d+), ?(\d+)\)", r"(\1, \2, \3)", text)
    if access := _ACCESS.search(text):
        space, kind, size, code, thread, block, address, problem = access.groups()
        noun = f"a misaligned {kind}" if problem == "misaligned" else _noun(kind)
        target = _target(int(address, 16), regions) if space == "global" else f"at address {address} of {space} memory"
        return f"{noun} of {size} bytes {target}, in block {block}, thread {thread}{_line(code)}"
    if race := _RACE.search(text):
        address, block, kind, thread, code, last_kind, last_thread, last_code = race.groups()
        return (
            f"a race: {_noun(last_kind)} at address {address} of shared memory and another access are not ordered, in "
            f"block {block}, thread {last_thread}{_line(last_code)}; the other is {_noun(kind)} in block {block}, "
            f"thread {thread}{_line(code)}"
        )
    return ""


def _noun(kind: str) -> str:
    return "an atomic operation" if kind.lower().startswith("atom") else f"a {kind.lower()}"


def _line(code: str) -> str:
    """Return the line of an instruction, `kernel()+0x50 in vec.cu:4`, if there is one."""
    line = re.search(r" in (\S+?:\d+)(?::|\s|$)", code)
    return f", at {line[1]}" if line else ""


def _target(address: int, regions: Sequence[Region]) -> str:
    """Return the address of an access as the checks on the CPU word it."""
    distances = [(max(begin - address, address - begin - size), name, begin, size) for name, begin, size in regions]
    distance, name, begin, size = min(distances, default=(_NEAR + 1, "", 0, 0))
    if distance > _NEAR:
        return f"at address 0x{address:x}, which is in no tensor"
    return f"at byte {address - begin} of {name!r}, which has {size} bytes"
