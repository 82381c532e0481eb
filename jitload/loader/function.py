"""Typed functions: `tvm_ffi.Function` objects that describe their kernel and can be configured, `f[grid, block](…)`."""

from __future__ import annotations

import importlib
import inspect
import math
import operator
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import tvm_ffi

from jitload.errors import JitLoadError, nearest_name
from jitload.tracebacks import at_caller, ends_at_caller, outside_graphs

if TYPE_CHECKING:
    from pathlib import Path

    from jitload.bounds.extents import Extents
    from jitload.inspection.code import LoadedKernel
    from jitload.inspection.listing import Listing
    from jitload.inspection.occupancy import Occupancy
    from jitload.loader.variants import Chosen
    from jitload.measuring.benchmark import Benchmark
    from jitload.measuring.tuning import Tuning
    from jitload.model import CompiledSource, Kernel


_SCALARS = {"int": int, "uint": int, "float": float, "bool": bool, "struct": bytes}
_VECTOR = r"=([friu])\d+\*(\d+)"  # the layout of a CUDA vector in the description of a function
_CACHEABLE_TYPES = frozenset((int, tuple, type(None)))
# These modules build kernels, so they are above the loader.
_CHECKER, _TUNER = "jitload.checking", "jitload.tuning.tuner"
_MAX_CONFIGURED = 1024  # configured functions that a function caches before it clears the cache


in_graphs = outside_graphs('register the function as a PyTorch operator, jitload.torch_op("my::f", f), and call that')


class Library:  # not a dataclass or a named tuple: creating one takes a tenth of a first cache hit
    """The data that the typed functions of a library share.

    `get` returns one of the functions that a library has for the loader.

    Attributes:
        configure: The library's function that implements `f[grid, block]`.
        bind: The library's function that lets a typed function bypass tvm-ffi; None if torch or Python prevents this.
        image: The library's function that returns the address of a cubin.
        origin: The path of the library in its cache entry, or the path that was loaded if there is no entry.
        explain: The library's function that tells what a call would launch.
        request: The request that the library was built for, or None.
        first_calls: The functions with what their first calls have chosen, by name.
        plain_code: The parts of the request that are compiled once more for `f.extents`, with their code.
    """

    __slots__ = ("bind", "configure", "explain", "first_calls", "image", "origin", "plain_code", "request")

    def __init__(self, get: Callable[[str], Any], *, is_direct: bool, origin: Path, request: Any) -> None:
        self.configure, self.image, self.explain = get("configure"), get("image"), get("explain")
        self.bind: Any = get("bind") if is_direct else None
        self.origin = origin
        self.request = request
        self.first_calls: dict[str, TypedFunction] = {}
        self.plain_code: dict[Any, CompiledSource] = {}


class TypedFunction(tvm_ffi.Function):  # type: ignore[misc]  # tvm-ffi's own class is untyped Cython
    """A kernel as a function: `f(x, y, n)`, or `f[grid, block, shared_bytes, stream](x, y, n)`.

    This class does not define `__call__`, so that a call goes straight to C code. For keyword arguments use `call`.
    """

    @property
    def kernel(self) -> Kernel:
        """The kernel with its parameters, registers, shared and local memory, on the library's first architecture."""
        if "kernel_record" not in self._jitload_facts:
            from jitload.inspection.code import check_single_kernel

            try:
                check_single_kernel(self._jitload_facts)
            except JitLoadError as error:
                raise AttributeError(str(error)) from None
            self._jitload_facts["kernel_record"] = kernel_of(self._jitload_facts)
        record: Kernel = self._jitload_facts["kernel_record"]
        return record

    @property
    def kernels(self) -> dict[str, Kernel]:
        """The kernel on each architecture of the library: `f.kernels["sm_90a"].registers`."""
        kernel = self.kernel
        builds: dict[str, dict[str, Any]] = self._jitload_facts.get("builds", {self._jitload_facts["arch"]: {}})
        return {arch: kernel._replace(**numbers) for arch, numbers in builds.items()}

    @property
    def extents(self) -> Extents:
        """What a launch touches of each tensor: `print(f.extents)`, `f.extents["y"].elements`.

        The kernel is compiled again, to PTX that shows its loops and the lines of its source.
        """
        if "extents" not in self._jitload_facts:
            checker = importlib.import_module(_CHECKER)
            self._jitload_facts["extents"] = ends_at_caller(checker.extents_of)(self)
        result: Extents = self._jitload_facts["extents"]
        return result

    @property
    def __signature__(self) -> inspect.Signature:
        if "python_signature" not in self._jitload_facts:
            self._jitload_facts["python_signature"] = signature_of(self._jitload_facts)
        signature: inspect.Signature = self._jitload_facts["python_signature"]
        return signature

    @in_graphs
    def __getitem__(self, key: Any) -> TypedFunction:
        """Return the function with a configuration: `f[grid, block]`, up to `f[grid, block, shared_bytes, stream]`.

        `grid` is the number of blocks, and `block` the number of threads per block. Each is an int, a tuple of up to
        three ints, or None for the value in the `Launch`. `stream` is an int, a torch or CuPy stream, or an object with
        `__cuda_stream__`. A Triton kernel has a fixed block: use `f[grid]` or `f[grid, None, None, stream]`.
        """
        __tracebackhide__ = True
        try:
            configured = self._jitload_configured[key]
            for part in key:
                if type(part) not in _CACHEABLE_TYPES:
                    break  # a float such as 4.0 finds the entry of 4, but must be rejected
            else:
                return configured
        except (KeyError, TypeError):
            pass
        try:
            return self._jitload_configure(key)
        except (TypeError, ValueError) as error:
            raise at_caller(error) from None

    @in_graphs
    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with keyword arguments: `f.call(x, y=out, n=5)`. This takes longer than `f(x, out, 5)`.

        A host function with a `cudaStream_t` parameter takes the stream as `stream=`.
        """
        __tracebackhide__ = True
        if "stream" in kwargs and self._jitload_facts.get("has_stream"):
            return self._jitload_on_stream(kwargs.pop("stream")).call(*args, **kwargs)
        names = list(self.__signature__.parameters)
        if unknown := [name for name in kwargs if name not in names]:
            suggestion = nearest_name(unknown[0], names)
            hint = (
                f", did you mean {suggestion!r}?" if suggestion else f"; its arguments are {', '.join(names) or 'none'}"
            )
            raise at_caller(TypeError(f"{self.__name__}() has no argument {unknown[0]!r}{hint}"))
        try:
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            parameters = [p.replace(kind=kind) for p in self.__signature__.parameters.values()]
            bound = inspect.Signature(parameters).bind(*args, **kwargs)
        except TypeError as error:
            raise at_caller(TypeError(f"{self.__name__}(): {error}")) from None
        return self(*bound.args)

    def ptx(self, *, arch: str | None = None) -> Listing:
        """Return the PTX of the kernel, and of the others that were compiled with it.

        The compiler's own PTX is kept in the cache entry of a build. A library that was copied out of its
        cache entry has only the PTX of architectures such as `"compute_90"`.

        Args:
            arch: The architecture, `"sm_90a"` or `"compute_90"`. By default, the library's only architecture, or else
                the current GPU's.

        Raises:
            JitLoadError: There is no PTX, the library has no code for the architecture, or the function does not have
                exactly one kernel for GPUs.
        """
        from jitload.inspection.listing import read_ptx

        return ends_at_caller(read_ptx)(self._jitload_kernel(), arch)

    def sass(self, *, source: bool = False, arch: str | None = None) -> Listing:
        """Return the machine code of the kernel, as nvdisasm prints it.

        Args:
            source: Whether to show the file and line of the source above their instructions. The kernel has to be
                built with `extra_cuda_cflags=["-lineinfo"]`.
            arch: The architecture, `"sm_90a"`. By default, the library's only architecture, or else the current GPU's.

        Raises:
            JitLoadError: There is no line information, the library has no code for the architecture, or the function
                does not have exactly one kernel for GPUs.
            ToolchainError: nvdisasm is missing: `pip install 'jitload[inspect]'`.
        """
        from jitload.inspection.listing import read_sass

        return ends_at_caller(read_sass)(self._jitload_kernel(), arch, source=source)

    def occupancy(self, block: Any = None, shared_bytes: int | None = None, *, arch: str | None = None) -> Occupancy:
        """Return how many blocks a multiprocessor runs at the same time, and what limits them.

        It is computed from the limits of the current GPU, or from a table for another architecture or without a GPU.

        Args:
            block: Threads per block, an int or a tuple. By default, the block of `f[grid, block]` or of the Triton
                kernel. If there is neither, 256 threads, or the kernel's maximum if that is smaller.
            shared_bytes: Dynamic shared memory per block in bytes. By default, the size in
                `f[grid, block, shared_bytes]` or of the Triton kernel, or else 0.
            arch: The architecture, `"sm_90a"`. By default, the library's only architecture, or else the current GPU's.

        Raises:
            JitLoadError: The library has no code for the architecture, the limits of the architecture are not known, or
                the function does not have exactly one kernel for GPUs.
            ValueError: A block of the kernel cannot have that many threads.
        """
        from jitload.inspection.occupancy import read_occupancy

        kernel, name = self._jitload_kernel(), self.__name__
        has_block, *extent = _extent(name, "block", block)
        if not has_block:
            has_block, *extent = self._jitload_config[5:9]
        if shared_bytes is None:
            shared_bytes = self._jitload_config[9]
        threads = math.prod(extent) if has_block else None
        if triton := self._jitload_facts.get("triton"):
            fixed = triton["num_warps"] * 32
            if threads not in (None, fixed):
                raise ValueError(
                    f"{name}(): block={threads}: the block of this Triton kernel always has {fixed} threads"
                )
            threads, shared_bytes = fixed, triton["shared_bytes"] if shared_bytes is None else shared_bytes
        shared_bytes = _integer(name, "shared_bytes", shared_bytes or 0)
        return ends_at_caller(read_occupancy)(kernel, arch, threads, shared_bytes)

    def benchmark(
        self,
        *args: Any,
        flush_l2: bool = False,
        bytes: int | None = None,  # noqa: A002  the best name, although it hides a builtin
        flop: float | None = None,
        restore: bool = False,
        seconds: float = 0.25,
    ) -> Benchmark:
        """Measure how long calls with these arguments take. Afterwards, restore the values of the tensors.

        Time on a GPU is measured with events, and on the CPU with the wall clock.

        Args:
            *args: The arguments of a call.
            flush_l2: Whether the L2 cache of a GPU is emptied before each launch that is measured.
            bytes: The bytes that a call moves. By default they are estimated: each tensor counts once, or twice if the
                kernel changes it in place.
            flop: The number of floating-point operations of a call.
            restore: Whether to always restore the values of the tensors before each call. By default, they are not
                restored for a short kernel whose results and time stay the same when it is repeated. Pass True for a
                kernel that relies on initial values, such as a counter that is zero.
            seconds: Roughly how long to measure.

        Raises:
            JitLoadError: A CUDA graph is being captured, or there is not enough memory.

        Example:
            `print(mod.add_one.benchmark(x, y))`
        """
        from jitload.measuring.benchmark import Options, measure

        handle = self._jitload_config[10]  # the stream of `f[grid, block, shared_bytes, stream]`
        options = Options(stream=handle, flush_l2=flush_l2, bytes=bytes, flop=flop, restore=restore, seconds=seconds)
        return ends_at_caller(measure)(self, args, options)

    def variant(self, *args: Any) -> Chosen:
        """Return which variant a call with these arguments launches, and how it was chosen. Nothing is launched."""
        from jitload.loader.variants import explain_call

        return ends_at_caller(explain_call)(self, args)

    def check(self, *args: Any, on: Literal["cpu", "gpu"] = "cpu") -> None:
        """Run this call on the CPU, on copies of its tensors, with `sanitize=("address", "race")`.

        With `on="gpu"`, run it under compute-sanitizer. This is `jitload.check`, which describes what it raises.
        """
        ends_at_caller(importlib.import_module(_CHECKER).check)(self, *args, on=on)

    def tune(self, *args: Any, **options: Any) -> Tuning:
        """Measure the variants of the function for the key of these arguments, and return a `Tuning`.

        The options are those of `jitload.tune`, which describes them.

        Example:
            `print(mod.softmax.tune(x, y, seconds=5, reference=torch.softmax))`
        """
        tuning: Tuning = ends_at_caller(importlib.import_module(_TUNER).tune)(self, *args, **options)
        return tuning

    def _jitload_kernel(self) -> LoadedKernel:
        from jitload.inspection.code import loaded_kernel

        library = self._jitload_library
        return ends_at_caller(loaded_kernel)(self._jitload_facts, library.image, library.origin)

    def __get__(self, instance: object, owner: type | None = None) -> TypedFunction:
        """Return the function itself, so that it is never bound as a method. `help()` needs this method."""
        return self

    def __repr__(self) -> str:
        key = f"[{', '.join(map(repr, self._jitload_key))}]" if self._jitload_key else ""
        return f"<jitload function {self.__name__}{key}{self._jitload_facts['signature'].removeprefix(self.__name__)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self.__name__}() cannot be pickled: it is code loaded into this process. "
            "Build or load the module in the other process."
        )

    def _jitload_set(self, facts: dict[str, Any], library: Library, config: tuple[Any, ...]) -> None:
        """Initialise the function with its description, its library and its launch configuration."""
        self.__name__ = self.__qualname__ = facts["name"]
        self.__module__ = "jitload"
        signatures = "\n".join(facts.get("variants", (facts["signature"],)))
        requires = f"\n\nRequires {', '.join(own for _, own in facts['requires'])}" if "requires" in facts else ""
        self.__doc__ = f"{facts['doc']}{requires}\n\n{signatures}".strip()
        self._jitload_key: tuple[Any, ...] = ()
        self._jitload_facts = facts
        self._jitload_library = library
        self._jitload_config = config
        self._jitload_configured: dict[Any, TypedFunction] = {}
        self._jitload_bind()

    def _jitload_bind(self) -> None:
        """Do nothing: calls go through tvm-ffi. Functions that bypass tvm-ffi override this method."""

    def _jitload_configure(self, key: Any) -> TypedFunction:
        name, parts = self.__name__, key if isinstance(key, tuple) else (key,)
        if "returns" in self._jitload_facts:
            raise TypeError(f"{name}() is a host function, which chooses its launches itself: call it without [...]")
        if "triton" in self._jitload_facts:
            if type(key) is int:
                return self[(key,)]
            key = _triton_key(name, key)
        if not isinstance(key, tuple) or not 2 <= len(key) <= 4:
            missing = " has no block: it" if _is_grid_alone(key) else ""
            raise TypeError(
                f"{name}[…]{missing} takes [grid, block], [grid, block, shared_bytes] or "
                "[grid, block, shared_bytes, stream]"
            )
        grid, block, shared_bytes, stream = (*key, None, None)[:4]
        if shared_bytes is not None:
            shared_bytes = _integer(name, "shared_bytes", shared_bytes)
        config = (
            self._jitload_facts["index"],
            *_extent(name, "grid", grid),
            *_extent(name, "block", block),
            shared_bytes,
            None if stream is None else _stream_handle(name, stream),
        )
        configured = self._jitload_with(config)
        configured._jitload_key = parts
        # A function with a stream object is not kept in the cache.
        if all(part is None or type(part) is int or _is_int_tuple(part) for part in parts):
            if len(self._jitload_configured) >= _MAX_CONFIGURED:
                self._jitload_configured.clear()
            self._jitload_configured[parts] = configured
        return configured

    def _jitload_with(self, config: tuple[Any, ...]) -> TypedFunction:
        """Return a copy of the function with a launch configuration, given as the arguments of `Library.configure`."""
        configured = type(self).__new__(type(self))
        configured.__move_handle_from__(self._jitload_library.configure(*config))
        configured._jitload_set(self._jitload_facts, self._jitload_library, config)
        if configured.release_gil != self.release_gil:
            configured.release_gil = self.release_gil
        return configured

    def _jitload_on_stream(self, stream: object) -> TypedFunction:
        """Return a copy of a host function with a stream for its `cudaStream_t`. None is the current stream."""
        handle = None if stream is None else _stream_handle(self.__name__, stream)
        return self._jitload_with((self._jitload_facts["index"], *(0,) * 8, None, handle))


def _triton_key(name: str, key: Any) -> tuple[Any, ...]:
    """Return the key of `f[grid]`, `f[x, y, z]` or `f[grid, None, None, stream]` as `(grid, None, None, stream)`."""
    parts = key if isinstance(key, tuple) else (key,)
    is_grid = len(parts) <= 3 and not any(part is None or isinstance(part, tuple | list) for part in parts)
    grid, block, shared_bytes, stream = (parts, None, None, None) if is_grid else (*parts, None, None, None)[:4]
    if block is not None or shared_bytes is not None or len(parts) > 4:
        raise TypeError(
            f"{name}[…] takes [grid], or [grid, None, None, stream]: the block and the shared memory of a Triton "
            "kernel are fixed when it is compiled"
        )
    return grid, None, None, stream


def _is_grid_alone(key: Any) -> bool:
    """Return whether the key is a grid without a block: `f[grid]`."""
    if isinstance(key, tuple) and len(key) == 1:
        return hasattr(key[0], "__index__") or _is_int_tuple(key[0])
    return hasattr(key, "__index__")


def _is_int_tuple(value: object) -> bool:
    return type(value) is tuple and all(type(item) is int for item in value)


def _integer(name: str, field: str, value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name}[…]: {field} must be an int, got bool")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}[…]: {field} must be an int, got {type(value).__name__}") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{name}[…]: {field} does not fit 64 bits: {number}")
    return number


def _extent(name: str, field: str, value: object) -> tuple[int, int, int, int]:
    """Return a grid or block as `(1, x, y, z)`, or `(0, 0, 0, 0)` for None, which means the value in the `Launch`."""
    if value is None:
        return (0, 0, 0, 0)
    extents = value if isinstance(value, tuple | list) else (value,)
    if not 1 <= len(extents) <= 3:
        raise TypeError(f"{name}[…]: {field} must have one to three dimensions, got {len(extents)}")
    x, y, z = (*(_integer(name, field, extent) for extent in extents), 1, 1)[:3]
    return (1, x, y, z)


def _stream_handle(name: str, stream: Any) -> int:
    """Convert an int, a torch or CuPy stream, or an object with `__cuda_stream__` to a stream handle."""
    protocol = getattr(stream, "__cuda_stream__", None)
    handle = next((getattr(stream, key) for key in ("cuda_stream", "ptr") if hasattr(stream, key)), stream)
    if protocol is not None:
        with suppress(TypeError, IndexError):  # a value that is not a pair is rejected below
            handle = (protocol() if callable(protocol) else protocol)[1]
    if isinstance(handle, bool) or not hasattr(handle, "__index__"):
        raise TypeError(
            f"{name}[…]: stream must be an int, a torch or CuPy stream, or have __cuda_stream__, "
            f"got {type(stream).__name__}"
        )
    return operator.index(handle)


def signature_of(facts: Mapping[str, Any]) -> inspect.Signature:
    """Return the Python signature of a typed function, given its description in the library."""
    parameters = []
    tensor: Any = getattr(sys.modules.get("torch"), "Tensor", tvm_ffi.Tensor)
    for argument in facts["arguments"]:
        annotation: Any = _SCALARS.get(argument["kind"], tensor)
        if vector := re.match(_VECTOR, argument.get("layout", "")):
            number = float if vector[1] in ("f", "r") else int
            annotation = tuple.__class_getitem__((number,) * int(vector[2]))
        if argument.get("nullable"):
            annotation = annotation | None
        kind = inspect.Parameter.POSITIONAL_ONLY
        parameters.append(inspect.Parameter(argument["name"], kind, annotation=annotation))
    returns = {"int": int, "float": float, "bool": bool}.get(facts.get("returns", ""))
    return inspect.Signature(parameters, return_annotation=returns)


def kernel_of(facts: Mapping[str, Any]) -> Kernel:
    """Return the kernel of a typed function, given its description in the library."""
    from jitload.model import Kernel, Parameter

    record = dict(facts["kernel"])
    record["parameters"] = tuple(Parameter(**parameter) for parameter in record["parameters"])
    return Kernel(**record)
