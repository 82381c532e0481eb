"""Checks a call of a kernel (`f.check`), and reads what a launch needs of its tensors (`f.extents`).

A call is checked on copies of its tensors: on the CPU with all checks, or on the GPU under NVIDIA's compute-sanitizer,
whose findings are worded as those of the checks on the CPU. Tensors that overlap have copies that overlap.
"""

from __future__ import annotations

import ctypes
import mmap
import pickle
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from jitload.bounds.extents import Extents, read_extents
from jitload.cpu.text import without_gpu_headers
from jitload.errors import CompileError, JitLoadError, ToolchainError
from jitload.inspection.code import check_single_kernel
from jitload.kernels.bounds import compile_plainly, depends_on_target
from jitload.kernels.source import device_source
from jitload.loader.function import TypedFunction, kernel_of
from jitload.loader.variants import MeasuringFunction, explain_call, with_choices
from jitload.measuring.memory import Extent, extent_of, merge_extents
from jitload.model import Parameter
from jitload.pipeline import load_request
from jitload.request.kind import kernels_alone
from jitload.request.launch import Launch
from jitload.request.options import cpu_options
from jitload.request.request import Request
from jitload.request.variants import expand, groups
from jitload.settings import read_settings
from jitload.signature.exports import choose_exports
from jitload.signature.types import is_pointer_to_pointer
from jitload.toolchain.arch import CPU, resolve_gpu_arch
from jitload.toolchain.cuda import find_cuda_toolchain
from jitload.toolchain.host import run_tool
from jitload.toolchain.nvcc import find_compute_sanitizer
from jitload.tracebacks import ends_at_caller

_ADDRESS = re.compile(r"u8(?![0-9])")  # in the layout of a structure: an integer of 8 bytes, or an address
_Copy = tuple[Extent, mmap.mmap, Any]  # memory that stands for an extent, and as a tensor if torch is imported
_ALIGNMENT = 64  # a copy's address has the same remainder as that of the original, so that vector loads stay aligned

_PROGRAM = (
    "import sys; _, call, device, *sys.path[:] = sys.argv; from jitload.checking import run_call; "
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


@ends_at_caller
def check(function: TypedFunction, *args: Any, on: Literal["cpu", "gpu"] = "cpu") -> None:
    """Run a call on the CPU with `sanitize=("address", "race")`, also if the function was loaded for a GPU.

    The kernel runs on copies of the tensors. The call changes nothing, and returns nothing if it finds nothing.

    Args:
        function: A typed function, or one with a configuration: `mod.scale[grid, block]`.
        *args: The arguments of a call.
        on: `"gpu"` runs the call on the GPU instead, in other processes, under NVIDIA's compute-sanitizer.

    Raises:
        RuntimeError: The kernel accesses memory outside its tensors or has a race, for example. The message names the
            kernel, the block, the thread and the line.
        JitLoadError: The kernel cannot run on the CPU, or its CUDA source is not at hand. That is so for Triton
            kernels, PyTorch extension sources and other hand-written C++, and after `load_module`.
        ToolchainError: There is no C++ compiler, or with `on="gpu"` no compute-sanitizer or no GPU.
    """
    if on not in ("cpu", "gpu"):
        raise ValueError(f"on= must be 'cpu' or 'gpu', got {on!r}")
    request = _request_of_call(function, args)
    if on == "gpu":
        check_on_gpu(function, request, args)
    else:
        _load_on_cpu(request, function)(*copy_arguments(function, args))


def extents_of(function: TypedFunction) -> Extents:
    """Return what a launch touches of each tensor, for the first GPU among the architectures of the function.

    If the code may differ for the others, or a first call may choose another variant, all tensors may be read.

    Raises:
        JitLoadError: The function does not have exactly one kernel, or its CUDA source is not at hand.
        ToolchainError: There is no NVRTC.
    """
    check_single_kernel(function._jitload_facts)
    launches, plain_code = _launches_of(function), function._jitload_library.plain_code
    request = launches[0][1]
    arch = next((arch for arch in request.archs if arch != CPU), "sm_90")  # if it is for the CPU alone
    for part in {part for _, part in launches} - plain_code.keys():
        plain_code[part] = compile_plainly(device_source(part), arch, find_cuda_toolchain(part.settings))
    kernels = dict.fromkeys(
        (plain_code[part].cubin.ptx, export.kernel)
        for launch, part in launches
        for export in choose_exports(((function.__name__, launch),), plain_code[part])
    )
    extents, *others = (read_extents(ptx, kernel.symbol, kernel.parameters) for ptx, kernel in kernels)
    may_differ = request.archs != (arch,) and depends_on_target(device_source(request))
    may_differ |= isinstance(function, MeasuringFunction)
    for key, extent in extents.items():
        is_read = may_differ or any(variant.get(key, extent).is_read for variant in (extents, *others))
        extents[key] = extent._replace(is_read=is_read)
    return extents


def _request_of(function: TypedFunction) -> Request:
    """Return the request for a kernel, or raise JitLoadError if it has no CUDA source."""
    if isinstance(function, TypedFunction) and "returns" not in function._jitload_facts:
        request = with_choices(function)._jitload_library.request
        if isinstance(request, Request) and request.pieces:
            return request
    raise JitLoadError(
        f"{getattr(function, '__name__', function)}() cannot be examined, because it has no CUDA source at hand: it is "
        "from a library, a cubin or Triton, or it is a host function. Those of PyTorch extension sources, for example, "
        "launch their kernels themselves. Load the kernel alone from its source, with load_inline() or load()"
    )


def _launches_of(function: TypedFunction) -> list[tuple[Launch, Request]]:
    """Return the launches of a function's kernels, each with the part of the request that it is compiled with."""
    request, name = expand(kernels_alone(_request_of(function))), function.__name__
    if request.functions is None:
        return [(Launch(), request)]
    parts = {pair: part for part in groups(request) for pair in part.functions or ()}
    return [(launch, parts[exported, launch]) for exported, launch in request.functions if exported == name]


def _request_of_call(function: TypedFunction, args: tuple[Any, ...]) -> Request:
    """Return the request for a function, with the launches of the variant that a call chooses, one for each dtype.

    A function for a GPU chooses none for tensors on the CPU, so it has its first variant.
    """
    launches = [(getattr(launch.tune, "values", ()), launch, part) for launch, part in _launches_of(function)]
    values, _, request = launches[0]
    is_on_cpu = any(is_copied(arg) and not getattr(arg, "is_cuda", False) for arg in args)
    if "tune" in function._jitload_facts and (CPU in request.archs or not is_on_cpu):
        values = tuple(explain_call(function, args).values.items())
    chosen = [(launch, part) for own_values, launch, part in launches if own_values == values]
    functions = tuple((function.__name__, replace(launch, tune=None)) for launch, _ in chosen)
    return chosen[0][1]._replace(functions=functions)


def _load_on_cpu(request: Request, function: TypedFunction) -> TypedFunction:
    """Return the function for the CPU with checks, and with its configuration.

    It is loaded without the device code that its kernel does not need, which only a GPU may be able to run.
    """
    request = request._replace(
        kind="cpu",
        archs=(CPU,),
        cpu_flags=request.cpu_flags or cpu_options(request.options),
        instrumentation=("address", "race"),
        settings=request.settings._replace(checks_for_gpu=False),  # it was compiled for one
    )
    of_kernel = kernels_alone(request, only=kernel_of(function._jitload_facts).name)
    pieces = tuple((label, without_gpu_headers(text)) for label, text in of_kernel.pieces)
    name, config = function.__name__, function._jitload_config[1:-1]
    try:
        return _load(of_kernel._replace(pieces=pieces), name, config)
    except CompileError as error:  # it may need more of the source, which may have errors in other kernels
        try:
            return _load(request, name, config)
        except CompileError:
            raise error from None


def _load(request: Request, name: str, config: tuple[Any, ...]) -> TypedFunction:
    """Return a function with a configuration, which launches in the current stream."""
    function: TypedFunction = load_request(request)[name]
    return function._jitload_with((function._jitload_facts["index"], *config, None))


# ---- copies of arguments --------------------------------------------------------------------------------------------


def copy_arguments(function: TypedFunction, args: Sequence[Any]) -> list[Any]:
    """Return the arguments of a call with copies of the tensors, as CPU tensors of torch or arrays of NumPy."""
    parameters = {parameter.name: parameter for parameter in kernel_of(function._jitload_facts).parameters}
    for name, arg in zip(function.__signature__.parameters, args, strict=False):
        if _may_have_addresses(arg, parameters[name]):
            raise JitLoadError(
                f"cannot check {function.__name__}(): argument {name!r} ({parameters[name].type}) may have addresses "
                "of memory that is not known. Only tensors of torch and arrays of NumPy are copied"
            )
    copies, torch = list[_Copy](), sys.modules.get("torch")
    for extent in merge_extents(extent_of(arg) for arg in args if is_copied(arg)):
        memory = mmap.mmap(-1, extent.address % _ALIGNMENT + extent.span)
        copies.append((extent, memory, torch and torch.frombuffer(memory, dtype=torch.uint8)))
    return [_copy(arg, copies) if is_copied(arg) else arg for arg in args]


def _may_have_addresses(arg: Any, parameter: Parameter) -> bool:
    """Return whether a kernel may get addresses from an argument, other than that of a tensor of torch or NumPy."""
    if parameter.kind == "struct":
        return _ADDRESS.search(parameter.layout or "u8") is not None
    is_known = (arg is None or _is_tensor(arg)) and not is_pointer_to_pointer(parameter.type)
    return parameter.kind == "pointer" and not is_known


def _is_tensor(arg: Any) -> bool:  # a number of NumPy's has no `__dlpack__`
    return hasattr(arg, "untyped_storage") or (hasattr(arg, "__array_interface__") and hasattr(arg, "__dlpack__"))


def is_copied(arg: Any) -> bool:
    """Return whether an argument is a tensor that can be copied. The call refuses unaligned ones, for example."""
    if not hasattr(arg, "untyped_storage"):
        return _is_tensor(arg) and arg.dtype.names is None
    is_plain = not (arg.is_meta or arg.is_nested or arg.is_neg() or arg.is_conj())
    return is_plain and arg.data_ptr() % arg.element_size() == 0


def _copy(tensor: Any, copies: Sequence[_Copy]) -> Any:
    """Return a view like `tensor` of the copy of its memory, into which the memory is copied."""
    extent = extent_of(tensor)
    if not extent.span:
        return tensor.cpu() if hasattr(tensor, "cpu") else tensor
    whole, memory, storage = next(copy for copy in copies if copy[0].overlaps(extent))
    begin = extent.address - whole.address + whole.address % _ALIGNMENT
    end = begin + extent.span
    if hasattr(tensor, "untyped_storage"):
        flat = tensor.detach().as_strided((extent.span // tensor.element_size(),), (1,))
        storage[begin:end].copy_(flat.view(storage.dtype))
        return storage[begin:end].view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
    import numpy as np

    original: Any = (ctypes.c_char * extent.span).from_address(extent.address)  # `string_at` reads less than 2 GiB
    memory[begin:end] = original
    first = begin + tensor.__array_interface__["data"][0] - extent.address
    array = np.ndarray(tensor.shape, tensor.dtype, memory, first, tensor.strides)
    array.flags.writeable = tensor.flags.writeable
    return array


# ---- on a GPU -------------------------------------------------------------------------------------------------------


def check_on_gpu(function: TypedFunction, request: Request, args: Sequence[Any]) -> None:
    """Run a call on copies of its tensors on the GPU, with checks of addresses and then with checks of races."""
    import torch

    program = find_compute_sanitizer(read_settings())
    archs = tuple(arch for arch in request.archs if arch != CPU)
    request = request._replace(
        kind="device",
        archs=archs or resolve_gpu_arch("native", request.settings, subject='check(…, on="gpu") runs kernels'),
        options=(*request.options, "--generate-line-info"),
        settings=request.settings._replace(library="never"),
    )
    load_request(request)  # so that the build's errors come from here
    copies = copy_arguments(function, [torch.as_tensor(arg) if is_copied(arg) else arg for arg in args])
    call = request, function.__name__, function._jitload_config[1:-1], copies
    device = next((str(arg.device) for arg in args if getattr(arg, "is_cuda", False)), "cuda")
    for tool in ("memcheck", "racecheck"):
        with TemporaryDirectory(prefix="jitload-check-") as directory:
            torch.save(call, Path(directory, "call"))
            options = ("--tool", tool, *_OPTIONS, "--log-file", f"{directory}/log")
            child = (sys.executable, "-c", _PROGRAM, directory, device, *sys.path)
            result = run_tool((str(program), *options, *child), str(program), variables=_VARIABLES, timeout_s=None)
            _report(function.__name__, Path(directory), result.stdout + result.stderr)


def run_call(directory: str, device: str) -> None:
    """Run the call in the file `call`. Write the memory of its tensors, and its error or None, to the file `outcome`.

    This runs under compute-sanitizer.
    """
    import torch

    tensors: dict[str, Extent] = {}
    error: Exception | None = None
    try:
        # Tensors that share memory share it on the device, too.
        request, name, config, args = torch.load(Path(directory, "call"), map_location=device, weights_only=False)
        function = _load(request, name, config)
        named = zip(function.__signature__.parameters, args, strict=False)
        tensors = {parameter: extent_of(arg) for parameter, arg in named if is_copied(arg)}
        function(*args)
        if device != "cpu":
            torch.cuda.synchronize(device)
    except Exception as raised:  # noqa: BLE001  the parent raises it
        error = raised if type(raised).__module__ == "builtins" else RuntimeError(f"{type(raised).__name__}: {raised}")
    Path(directory, "outcome").write_bytes(pickle.dumps((tensors, error)))


def _report(name: str, directory: Path, output: str) -> None:
    """Raise an error if compute-sanitizer has found something, or if the call or compute-sanitizer itself failed."""
    log, outcome = directory / "log", directory / "outcome"
    text = re.sub("^=+ ?", "", log.read_text(errors="replace"), flags=re.MULTILINE) if log.exists() else ""
    count = re.search(r"SUMMARY: (\d+) (?:error|hazard)", text)
    if count is None or not outcome.exists():
        raise ToolchainError(f"compute-sanitizer could not check {name}():\n{text}{output}".rstrip())
    tensors, error = pickle.loads(outcome.read_bytes())  # noqa: S301  from our own child
    if count[1] != "0":
        raise RuntimeError(f"{name}(): " + (describe(text, tensors) or f"compute-sanitizer reports:\n{text.strip()}"))
    if error is not None:
        raise error


def describe(text: str, tensors: Mapping[str, Extent]) -> str:
    """Return the first invalid access or race in the output of compute-sanitizer, or "" if there is none."""
    if access := _ACCESS.search(text):
        space, kind, size, code, thread, block, address, problem = access.groups()
        noun = f"a misaligned {kind}" if problem == "misaligned" else _noun(kind)
        target = _target(int(address, 16), tensors) if space == "global" else f"at address {address} of {space} memory"
        return f"{noun} of {size} bytes {target}, {_place(block, thread, code)}"
    if race := _RACE.search(text):
        address, block, kind, thread, code, last_kind, last_thread, last_code = race.groups()
        return (
            f"a race: {_noun(last_kind)} at address {address} of shared memory and another access are not ordered, "
            f"{_place(block, last_thread, last_code)}; the other is {_noun(kind)} {_place(block, thread, code)}"
        )
    return ""


def _noun(kind: str) -> str:
    return "an atomic operation" if kind.lower().startswith("atom") else f"a {kind.lower()}"


def _place(block: str, thread: str, code: str) -> str:
    """Return the block, the thread and, if there is one, the line of an instruction, `kernel()+0x50 in vec.cu:4`."""
    place = re.sub(", ?", ", ", f"in block {block}, thread {thread}")
    line = re.search(r" in (\S+?:\d+)(?::|\s|$)", code)
    return f"{place}, at {line[1]}" if line else place


def _target(address: int, tensors: Mapping[str, Extent]) -> str:
    """Return the address of an access as the checks on the CPU word it."""
    distances = [(max(t.address - address, address - t.address - t.span), name) for name, t in tensors.items()]
    distance, name = min(distances, default=(_NEAR + 1, ""))
    if distance > _NEAR:
        return f"at address 0x{address:x}, which is in no tensor"
    return f"at byte {address - tensors[name].address} of {name!r}, which has {tensors[name].span} bytes"
