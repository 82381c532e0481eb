"""Load a shared library as a `Module` of typed functions."""

from __future__ import annotations

import ctypes
import functools
import json
import operator
import os
import re
import shutil
import struct
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, cast

import tvm_ffi

from jitload.errors import LoadError
from jitload.loader.direct_calls import CheckedFunction, direct_arguments, direct_type, torch_exchange
from jitload.loader.function import Library, TypedFunction, in_graphs
from jitload.tracebacks import at_caller
from jitload.words import Argument, Words

if TYPE_CHECKING:
    from jitload.settings import Settings

_COMPLEX_OF = {"float32": "complex64", "float64": "complex128"}  # float2 and complex<float> are pairs of float32
# The attributes that tab completion shows besides the functions.
_SHOWN = ("get_function", "get_function_doc", "get_function_metadata", "imports", "kind", "write_stub")
_MISSING_CUDART = r"libcudart\.so\.(\d+): cannot open shared object file"
_NO_FUNCTIONS = (
    "none. Functions of C++ are exported if functions=['name'] names them where the library is built, or by "
    "TVM_FFI_DLL_EXPORT_TYPED_FUNC in the C++"
)
_lock = threading.Lock()
_loaded_files: dict[str, tuple[int, int, int, int]] = {}  # path of a loaded library -> identity of its file


class Module(tvm_ffi.Module):  # type: ignore[misc]  # tvm-ffi is not checked here
    """The typed functions of a library; a `tvm_ffi.Module`.

    `mod.add_one` and `mod["add_one"]` are the same typed function. For a kernel that is named like an attribute of
    `tvm_ffi.Module`, such as `imports`, use the second form. Iterating over a module gives the names of its functions.
    """

    def __getattr__(self, name: str) -> TypedFunction:
        if name.startswith("_jitload"):
            raise AttributeError(name)
        function = self[name]
        self.__dict__[name] = function
        return function

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"cannot set {name!r} on {self!r}, which is shared by everything that loads this source; use a variable"
        )

    def __getitem__(self, name: str) -> TypedFunction:
        return self.get_function(name)

    @in_graphs
    def get_function(self, name: str, query_imports: bool = False) -> TypedFunction:  # noqa: FBT001, FBT002  of tvm-ffi
        """Return a function of the library by its exported name."""
        if not isinstance(name, str):
            raise at_caller(TypeError(f"names of functions of {self!r} must be str, got {type(name).__name__}"))
        if (functions := self.__dict__.get("_jitload_torch")) is not None and hasattr(functions, name):
            function: TypedFunction = getattr(functions, name)
            return function
        facts = self._jitload_facts()["functions"].get(name)
        if facts is not None and "returns" not in facts:  # host functions are in libraries alone
            return _typed(self, None, facts)
        try:
            function = super().get_function(name, query_imports)
        except AttributeError:
            names = ", ".join(self) or _NO_FUNCTIONS
            raise at_caller(AttributeError(f"{self!r} has no function {name!r}; it has: {names}")) from None
        if facts is not None:
            return _typed(self, function, facts)
        if name in self.__dict__.get("_jitload_documented", ()):
            # The function stays an instance of tvm-ffi's own class, because a typed function would take longer to call.
            function.__name__, function.__doc__ = name, self.get_function_doc(name)
        return function

    def get_function_doc(self, name: str, query_imports: bool = False) -> str | None:  # noqa: FBT001, FBT002  of tvm-ffi
        """Return the docstring of a function, or None."""
        facts = self._jitload_facts()["functions"].get(name)
        return (facts["doc"] or None) if facts else cast("str | None", super().get_function_doc(name, query_imports))

    def get_function_metadata(self, name: str, query_imports: bool = False) -> dict[str, Any] | None:  # noqa: FBT001, FBT002  of tvm-ffi
        """Return the types of a function's arguments as tvm-ffi describes them, or None."""
        if facts := self._jitload_facts()["functions"].get(name):
            return cast("dict[str, Any]", json.loads(loader_function(self, "metadata")(facts["index"])))
        return cast("dict[str, Any] | None", super().get_function_metadata(name, query_imports))

    def implements_function(self, name: str, query_imports: bool = False) -> bool:  # noqa: FBT001, FBT002  of tvm-ffi
        """Return whether the module has a function of this name."""
        return name in self._jitload_facts()["functions"] or bool(super().implements_function(name, query_imports))

    def write_stub(self, path: str | os.PathLike[str]) -> Path:
        """Write a type stub of the functions, so that editors complete and check calls. Return the path of the stub.

        Example:
            `mod.write_stub("vec.pyi")`, beside a `vec.py` that loads the module and assigns its functions
        """
        from jitload.loader.stub import write_stub

        return write_stub(self, path)

    def _jitload_facts(self) -> dict[str, Any]:
        """Return the library's `name`, `archs`, `functions` and `variables`.

        A library without jitload's description, such as one that another tool has built, has only a name.
        """
        facts: dict[str, Any] | None = self.__dict__.get("_jitload_description")
        if facts is None:
            facts = _describe(self)
            self.__dict__["_jitload_description"] = facts
        return facts

    def _jitload_library(self) -> Library:
        """Return the `Library` that the typed functions of the module share."""
        library: Library | None = self.__dict__.get("_jitload_functions")
        if library is None:
            use_python = tvm_ffi.Module.get_function(self, "_jitload_use_python")
            is_direct = direct_type() is not None and use_python(*direct_arguments())
            origin, request = self.__dict__["_jitload_origin"], self.__dict__.get("_jitload_request")
            get = functools.partial(loader_function, self)
            library = Library(get, is_direct=is_direct, origin=origin, request=request)
            library = self.__dict__.setdefault("_jitload_functions", library)  # unless another thread was faster
        return library

    def _jitload_names(self) -> Sequence[str]:
        """Return the names of the typed functions, followed by the names that hand-written C++ exports."""
        facts = self._jitload_facts()
        return (*facts["functions"], *self.__dict__.get("_jitload_exports", ()))

    def __iter__(self) -> Iterator[str]:
        return iter(self._jitload_names())

    def __len__(self) -> int:
        return len(self._jitload_names())

    def __contains__(self, name: object) -> bool:
        return name in self._jitload_names()

    def __bool__(self) -> bool:
        return True

    def __dir__(self) -> list[str]:
        special = (name for name in super().__dir__() if name.startswith("__"))
        return sorted({*special, *_SHOWN, *self})

    def __repr__(self) -> str:
        return f"<{self._jitload_title()}: {'; '.join(self._signatures()) or 'no functions'}>"

    def __str__(self) -> str:
        return "\n  ".join((f"{self._jitload_title()}:", *(self._signatures() or ["no functions"])))

    def _jitload_title(self) -> str:
        facts = self._jitload_facts()
        return f"jitload.Module {facts['name']!r}" + (f" ({', '.join(facts['archs'])})" if facts["archs"] else "")

    def _signatures(self) -> list[str]:
        signatures = [function["signature"] for function in self._jitload_facts()["functions"].values()]
        return [*signatures, *(f"{name}(…)" for name in self.__dict__.get("_jitload_exports", ()))]

    def _repr_html_(self) -> str:
        from jitload.loader.display import html_text

        return html_text(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a jitload.Module cannot be pickled: load its library in the other process (jitload.load_module)"
        )


def load_library(path: str | os.PathLike[str], *, keep_module_alive: bool = True) -> Module:
    """Load a library and return it as a module.

    If the file at `path` has changed since this process loaded it, load a copy with another name. The dynamic loader
    identifies libraries by name, so it would return the old library.
    """
    library_path = Path(path).absolute()
    try:
        with _path_to_map(library_path) as path_to_map:
            raw = _map_library(path_to_map, keep_module_alive=keep_module_alive)
    except (OSError, RuntimeError) as error:
        raise LoadError(f"the library {library_path} cannot be loaded: {_reason(error)}") from error
    module = Module.__new__(Module)
    module.__move_handle_from__(raw)
    module.__dict__["_jitload_origin"] = library_path
    if not module._jitload_facts()["name"] or module._jitload_facts().get("has_cpp"):
        list_exports(module, library_path)
    _preload(module)
    return module


def load_record(path: Path, settings: Settings) -> Module:
    """Load kernels from their record, without a library, and return them as a module."""
    from jitload.building.native import find_native  # the hit of a library does not need it

    runtime = find_native("shared")
    if runtime is None:
        from jitload.building.runtime import find_objects

        (runtime,) = find_objects(("shared",), settings)
    try:
        record = path.read_bytes()
        raw = tvm_ffi.load_module(str(runtime))
        start = ctypes.cast(ctypes.c_char_p(record), ctypes.c_void_p).value
        address = raw.get_function("_jitload_open")(start, len(record))
    except (OSError, RuntimeError, ValueError) as error:
        raise LoadError(f"the kernels in {path} cannot be loaded: {error}") from error
    module = Module.__new__(Module)
    module.__move_handle_from__(raw)
    module.__dict__.update(_jitload_origin=path, _jitload_address=address)
    _preload(module)
    return module


def _preload(module: Module) -> None:
    """Pass torch's functions for the current stream and for allocation, and load kernels on the GPUs in use."""
    functions = module._jitload_facts()["functions"]
    if functions or module._jitload_facts()["variables"]:
        exchange = torch_exchange()
        addresses: list[int | None] = [*exchange[1:]] if exchange else [0, 0]
        if any("tune" in function for function in functions.values()):
            from jitload.loader.variants import untuned_reporter

            addresses.append(ctypes.cast(untuned_reporter(), ctypes.c_void_p).value)
        loader_function(module, "preload")(*addresses)


def _map_library(path: Path, *, keep_module_alive: bool) -> tvm_ffi.Module:
    """Load a library. If the CUDA runtime is not found, first load the runtime of a wheel or toolkit."""
    try:
        return tvm_ffi.load_module(str(path), keep_module_alive=keep_module_alive)
    except RuntimeError as error:
        from jitload.settings import read_settings
        from jitload.toolchain.libraries import find_installed

        match = re.search(_MISSING_CUDART, str(error))
        cudart = find_installed("cudart", int(match[1]), read_settings()) if match else None
        if cudart is None:
            raise
        ctypes.CDLL(str(cudart))
        return tvm_ffi.load_module(str(path), keep_module_alive=keep_module_alive)


def _reason(error: Exception) -> str:
    """Return the dynamic loader's message, and what the user can do about the error."""
    if match := re.search(_MISSING_CUDART, str(error)):
        wheel = "nvidia-cuda-runtime-cu12" if match[1] == "12" else f"'nvidia-cuda-runtime=={match[1]}.*'"
        return f"{error}\nIt needs the runtime library of CUDA {match[1]}: pip install {wheel}"
    match = re.search(r"([^\s/]+): undefined symbol: ([\w.$]+)", str(error))
    if match is None:
        message = re.sub(r"Check failed: .* shared library (.*) (?=\1: )", "", str(error), flags=re.DOTALL)
        return f"{message}\nBuild or copy the library again, for this machine"
    from jitload.signature.demangle import demangle

    name = demangle(match[2]) or match[2]
    return Words(
        f"{match[1]} needs {name}, which is not defined by anything that was linked or loaded. Define it "
        'in the sources (for C, declare it extern "C"), or link the library that defines it, ',
        Argument("extra_ldflags", "/path/to/lib.so", python='extra_ldflags=["/path/to/lib.so"]'),
        f".\n{error}",
    )


def check_is_library(path: Path) -> None:
    """Raise LoadError for a file that is not a complete library, such as a source file.

    Mapping a truncated ELF file would end the process with SIGBUS. A library may have no table of sections, which only
    debuggers and linkers read.
    """
    if path.suffix not in (".so", ".dylib", ".dll") or not path.is_file():
        raise _no_library(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(64)
        if len(head) < 64 or not head.startswith(b"\x7fELF\2\1"):
            return  # the dynamic loader reports that the file is not a 64-bit ELF file
        segments, sections, *counts = struct.unpack_from("<32xQQ6xHHHH", head)
        ends = [segments + counts[0] * counts[1], sections + counts[2] * counts[3]]
        if max(ends) <= size and counts[0] == 56:
            file.seek(segments)
            ends += [sum(extent) for extent in struct.iter_unpack("<8xQ16xQ16x", file.read(56 * counts[1]))]
    if max(ends) > size:
        raise LoadError(f"the library {path} is truncated: it has {size} of {max(ends)} bytes. Build or copy it again.")


def _no_library(path: Path) -> LoadError:
    """Return the error for a file that does not exist or has the name of something else."""
    from jitload.request.sources import SUFFIXES

    alternatives = {".cubin": "embed_cubin= of load_inline()", ".ptx": "compile_cubin()", ".py": "import"}
    if path.suffix not in (*SUFFIXES, *alternatives):
        problem = f"{path} is not a library: the name of a library ends in .so"
        return LoadError(problem if path.is_file() else f"no library at {path}")
    alternative = alternatives.get(path.suffix, f"load(name, sources={path.name!r})")
    advice = f"load_module() loads what build() made. For this file, use {alternative}"
    kind = "other file" if path.suffix in alternatives else "source file"
    return LoadError(f"{path} is not a library: ", Argument(kind, path.name, python=advice))


@contextmanager
def _path_to_map(path: Path) -> Iterator[Path]:
    """Yield `path`, or the path of a temporary copy if this process has loaded another file from `path`.

    The copy is deleted when the context ends. The dynamic loader still identifies the library by the copy's path, which
    is the same whenever the same file is loaded again.
    """
    status = os.stat(path)
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    with _lock:
        is_unchanged = _loaded_files.setdefault(str(path), identity) == identity
    if is_unchanged:
        yield path
        return
    with _lock, ExitStack() as stack:
        if not os.path.isdir(_copies().name):  # a cleaner of temporary files has removed it
            _copies.cache_clear()
        copy = Path(_copies().name, "-".join(map(str, identity)), path.name)
        copy.parent.mkdir()
        stack.callback(shutil.rmtree, copy.parent)
        yield shutil.copyfile(path, copy)


@functools.cache
def _copies() -> tempfile.TemporaryDirectory[str]:
    """Return the directory for copies, which is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="jitload-")


def loader_function(module: Module, name: str) -> functools.partial[Any]:
    """Return one of the functions that a library has for the loader, with the module's record as the first argument."""
    get = functools.partial(tvm_ffi.Module.get_function, module)
    address = module.__dict__.get("_jitload_address")
    if address is None:
        address = module.__dict__["_jitload_address"] = get("_jitload_module")()
    return functools.partial(get(f"_jitload_{name}"), address)


def _describe(module: Module) -> dict[str, Any]:
    try:
        text = loader_function(module, "describe")()
    except AttributeError:
        return {"name": "", "archs": [], "functions": {}, "variables": []}
    facts: dict[str, Any] = json.loads(text)
    archs = facts["archs"]
    shared = {"arch": next(iter(archs), ""), "archs": archs}  # a library without kernels has no archs
    functions = {
        function["name"]: {**function, "index": number, **shared} for number, function in enumerate(facts["functions"])
    }
    return {**facts, "functions": functions}


def list_exports(module: Module, library_path: Path) -> None:
    """Store the names of exported C++ functions in the module. The library's description does not contain them."""
    if "_jitload_exports" in module.__dict__:
        return
    from jitload.elf.file import read_dynamic_symbols

    offered = read_dynamic_symbols(library_path.read_bytes()).defined
    names = [name.removeprefix("__tvm_ffi_") for name in offered if name.startswith("__tvm_ffi_")]
    facts = module._jitload_facts()
    plain = sorted(name for name in names if not name.startswith("_") and name not in facts["functions"])
    if "_jitload_torch_module" in names:
        functions = module.__dict__["_jitload_torch"] = ModuleType(library_path.stem)
        functions.__file__ = str(library_path)
        tvm_ffi.Module.get_function(module, "_jitload_torch_module")(id(functions))
        plain += sorted(name for name in vars(functions) if not name.startswith("_"))
    module.__dict__["_jitload_exports"] = tuple(plain)
    documented = frozenset(name.removeprefix("_doc_") for name in names if name.startswith("_doc_"))
    module.__dict__["_jitload_documented"] = documented
    module.__dict__["_jitload_description"] = {**facts, "name": facts["name"] or library_path.stem}


def _typed(module: Module, function: tvm_ffi.Function | None, facts: dict[str, Any]) -> TypedFunction:
    """Return a typed function that takes its handle from `function`, or one that launches as the `Launch` declares."""
    library = module._jitload_library()
    is_kernel = "returns" not in facts
    kind = (direct_type() if library.bind is not None and is_kernel else None) or CheckedFunction
    if facts.get("tune", {}).get("measures") and library.request is not None:
        from jitload.loader.variants import MeasuringFunction

        kind = MeasuringFunction
    typed = kind.__new__(kind)
    as_declared = (facts["index"], *(0,) * 8, None, None)
    typed.__move_handle_from__(function or library.configure(*as_declared))
    typed._jitload_set(facts, library, as_declared)
    return typed


def global_tensor(module: Module, name: str, dtype: object, shape: int | Sequence[int]) -> Any:
    """Return a `__device__` or `__constant__` variable of the module, on the current device, as a tensor.

    The tensor is a view of the variable: later launches read what is written to the tensor.

    Args:
        module: A module that jitload built.
        name: The variable's C++ name, `coeffs` or `ns::coeffs`.
        dtype: The variable's element type: `"float32"`, `torch.float32`, `numpy.float32`.
        shape: The shape of the tensor, which must have as many bytes as the variable.

    Returns:
        A `tvm_ffi.Tensor`, which other frameworks convert without a copy, for example `torch.from_dlpack`.

    Raises:
        LoadError: The module has no such variable.
        ValueError: The size or the dtype differs from the variable's.

    Example:
        `torch.from_dlpack(jitload.global_tensor(mod, "coeffs", torch.float32, (16,))).copy_(values)`
    """
    if not isinstance(module, Module):
        raise TypeError(f"global_tensor() takes a module that jitload built, got {type(module).__name__}")
    facts = module._jitload_facts()
    names = [variable["name"] for variable in facts["variables"]]
    if name not in names:
        variables = f"it has: {', '.join(names)}" if names else "it has none"
        raise LoadError(f"module {facts['name']!r} has no __device__ or __constant__ variable {name!r}; {variables}")
    if copies := facts.get("copies"):
        problem = (
            f"{copies} variants of the kernels were compiled with different options, and each has its own {name!r}"
        )
        raise LoadError(f"module {facts['name']!r}: {problem}, so it is not one tensor")
    number = names.index(name)
    kind = _dtype(dtype)
    extents = _extents(shape)
    size = functools.reduce(operator.mul, extents, 1) * kind.itemsize
    expected = facts["variables"][number].get("dtype")
    if expected is not None and str(kind) not in (expected, _COMPLEX_OF.get(expected)):
        raise ValueError(f"variable {name!r} has elements of {expected}, not {kind}")
    actual = facts["variables"][number]["size"]
    if size != actual or any(extent < 0 for extent in extents):
        raise ValueError(f"variable {name!r} has {actual} bytes; {kind} with shape {tuple(extents)} would have {size}")
    return loader_function(module, "global")(number, kind, size, *extents)


def _extents(shape: Any) -> list[int]:
    try:
        return [operator.index(shape)]
    except TypeError:
        with suppress(TypeError):
            return [operator.index(extent) for extent in shape]
    raise TypeError(f"shape must be an int or a sequence of them, got {shape!r}")


def _dtype(dtype: object) -> Any:
    """Return tvm-ffi's dtype for a name, or for a dtype of torch, NumPy or JAX."""
    text = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or str(dtype)
    with suppress(ValueError, TypeError, RuntimeError):
        kind = tvm_ffi.dtype(text.removeprefix("torch."))
        if kind.itemsize:
            return kind
    raise ValueError(f"dtype {dtype!r} is unknown; write 'float32', torch.float32 or the like")


def torch_module(module: Module) -> ModuleType:
    """Return the Python module with the functions that the library defines in its `PYBIND11_MODULE`."""
    functions: ModuleType | None = module.__dict__.get("_jitload_torch")
    if functions is None:
        raise LoadError(f"{module!r} has no PYBIND11_MODULE: list the functions to export, functions=['f']")
    return functions
