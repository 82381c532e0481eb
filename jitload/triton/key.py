"""Collects everything that can change the machine code of a Triton kernel, as parts of its cache key.

Triton's own `cache_key` covers the source of a function, the sources of the functions that it calls, and the constexprs
among its globals. Other values are compiled in as well, and are therefore read here: the globals of called functions,
which Triton looks up only once; the defaults of their parameters; attributes of modules and objects, such as
`config.BLOCK`; and everything that a `constexpr_function` reads.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from jitload.errors import JitLoadError
from jitload.triton.kernel import TritonKernel, plain_value
from jitload.triton.plan import Plan
from jitload.triton.versions import find_triton

if TYPE_CHECKING:
    from jitload.model import Cubin

Part = tuple[str, str | tuple[str, ...]]

# Environment variables of Triton's that do not change the machine code.
_HARMLESS_VARIABLES = frozenset(
    f"TRITON_{name}"
    for name in (
        "HOME", "CACHE_DIR", "DUMP_DIR", "KERNEL_DUMP", "PRINT_AUTOTUNING", "CACHE_AUTOTUNING", "CACHE_MANAGER",
        "REDIS_HOST", "REDIS_PORT", "REDIS_KEY_FORMAT", "REMOTE_CACHE_BACKEND", "LIBCUDA_PATH", "CUDACRT_PATH",
        "CUDART_PATH", "ALWAYS_COMPILE", "STORE_BINARY_ONLY", "DUMP_PTXAS_LOG", "FRONT_END_DEBUGGING",
    )
)  # fmt: skip
_OTHER_VARIABLES = ("PTXAS_OPTIONS", "DISABLE_PTXAS_OPT", "USE_IR_LOC", "LLVM_EXTRACT_DI_LOCAL_VARIABLES")
_FILE_VARIABLES = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH", "TRITON_LIBDEVICE_PATH")


def kernel_parts(kernel: TritonKernel) -> tuple[tuple[Part, ...], bool]:
    """Return the cache key's parts for a kernel, and whether they are complete. If not, no cache may be used."""
    try:
        key = str(kernel.function.cache_key)
        used: Mapping[Any, Any] = kernel.function.used_global_vals
    except Exception:  # noqa: BLE001  the source cannot be read, for whatever reason; compiling reports it
        return (_unique_part(),), False
    values = outer_values(kernel.function)
    is_complete = values is not None and not _is_overridden()
    flags = (str(getattr(kernel.function, name, None)) for name in ("debug", "noinline"))
    texts = (f"{name}={getattr(value, 'value', value)!r}" for (name, _), (value, _) in used.items())
    parts: tuple[Part, ...] = (
        ("triton", _triton_identity()),
        ("kernel", (kernel.name, key, *flags)),
        ("globals", tuple(sorted(texts))),
        ("outer", tuple(f"{name}={value}" for name, value in values or ())),
        ("environment", tuple(_environment())),
    )
    return (parts if is_complete else (*parts, _unique_part())), is_complete


def _unique_part() -> Part:
    """Return a part that makes the key unlike any other."""
    return "incomplete", os.urandom(16).hex()


def _is_overridden() -> bool:
    """Return whether files that override the source, or a hook in Triton's stages, may change the machine code."""
    if os.environ.get("TRITON_KERNEL_OVERRIDE", "0") not in ("", "0"):
        return True
    with suppress(ImportError, AttributeError):
        from triton import knobs

        return knobs.runtime.add_stages_inspection_hook is not None
    return False


def plan_parts(plan: Plan) -> tuple[tuple[str, ...], bool]:
    """Return the texts that identify a specialization in the key, and whether they identify it completely."""
    constants = [(path, _constant_text(value)) for path, value in sorted(plan.constants.items())]
    options = [(name, _constant_text(value)) for name, value in sorted(plan.options.items())]
    is_complete = all(text is not None for _, text in [*constants, *options])
    texts = (
        *(f"{name}: {types!r}" for name, types in plan.types),
        *(f"{path} = {text}" for path, text in constants),
        *(f"multiple of 16: {path}" for path in sorted(plan.multiples)),
        *(f"constexpr {name}" for name in sorted(plan.constexprs)),
        *(f"{name}={text}" for name, text in options),
    )
    return (texts if is_complete else (*texts, os.urandom(16).hex())), is_complete


def _constant_text(value: Any) -> str | None:
    """Return a text that identifies a compiled-in value, or None if a text cannot identify the value."""
    value = plain_value(value)
    if isinstance(value, _PLAIN_TYPES):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, tuple | list):
        items = [_constant_text(item) for item in value]
        return None if None in items else f"{type(value).__name__} {items}"
    if key := getattr(value, "cache_key", None):
        values = outer_values(value)
        return None if values is None else f"function {key} {getattr(value, 'debug', None)} {values}"
    return _type_text(value)


def cubin_parts(cubin: Cubin) -> tuple[str, ...]:
    """Return the texts that identify a compiled kernel in the key."""
    if cubin.triton is None:
        raise JitLoadError("the Cubin was not made from a Triton kernel: pass what extract_triton() returns")
    return (hashlib.sha256(cubin.data).hexdigest(), cubin.arch, repr(cubin.triton))


# ---- Triton and its environment --------------------------------------------------------------------------------


def _triton_identity() -> tuple[str, ...]:
    """Return Triton's version and a digest of Triton's compiler.

    The installer records the digest, so it is the same wherever the same wheel is installed. If the record is missing
    or out of date, the size and modification time of the compiler's file replace the digest.
    """
    import triton as package

    package_dir = os.path.dirname(package.__file__)
    library_path = f"{package_dir}/_C/libtriton.so"
    record_path = f"{os.path.dirname(package_dir)}/triton-{package.__version__}.dist-info/RECORD"
    return (find_triton(), _recorded_digest(library_path, record_path) or _file_state(library_path))


def _recorded_digest(library_path: str, record_path: str) -> str:
    """Return the compiler's digest from the installer's list of files, or "" if the list is missing or out of date."""
    try:
        library, record = os.stat(library_path), os.stat(record_path)
    except OSError:
        return ""
    digest, size = _read_record(record_path, record.st_mtime_ns)
    # Installers write the list after the files, so a library that is newer than the list was changed later.
    return digest if size == str(library.st_size) and library.st_mtime_ns <= record.st_mtime_ns else ""


@functools.lru_cache(maxsize=4)
def _read_record(record_path: str, _mtime_ns: int) -> tuple[str, str]:
    with suppress(OSError, ValueError), open(record_path, "rb") as file:
        # Searching all of the bytes takes a tenth of the time that splitting a text into lines takes.
        line = (b"\n" + file.read()).partition(b"\ntriton/_C/libtriton.so,")[2].partition(b"\n")[0]
        digest, size = line.decode().rstrip().split(",")
        if digest.startswith("sha256="):
            return digest, size
    return "", ""


def _file_state(path: str) -> str:
    try:
        stat = os.stat(path)
    except OSError:
        return "absent"
    return f"{stat.st_size} {stat.st_mtime_ns}"


def is_in_key(name: str) -> bool:
    """Return whether an environment variable is part of the key, because it may change what Triton generates."""
    return (name.startswith("TRITON_") and name not in _HARMLESS_VARIABLES) or name in _OTHER_VARIABLES


def _environment() -> Iterator[str]:
    yield from (f"{name}={value}" for name, value in sorted(os.environ.items()) if is_in_key(name))
    yield from (f"{name}: {_file_state(os.environ[name])}" for name in _FILE_VARIABLES if name in os.environ)
    try:
        from triton._C.libtriton import get_cache_invalidating_env_vars

        yield from (f"{name}={value}" for name, value in sorted(get_cache_invalidating_env_vars().items()))
    except ImportError:
        yield "cache-invalidating variables unknown"


# ---- values from outside a function ----------------------------------------------------------------------------

_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))
_CONTAINER_TYPES = (tuple, list, set, frozenset, dict)
_KNOWN_PACKAGES = ("triton", "builtins", "math")
_MAX_OBJECTS = 10_000


def outer_values(function: Any) -> tuple[tuple[str, str], ...] | None:
    """Return the outside values, such as globals, that a function and the functions it calls can read.

    The result may include values that the function does not use. If such a value changes, the only cost is a needless
    build.

    Returns:
        (name, value as text) pairs; None if there is a value that no text describes completely.
    """
    search = _Search()
    search.visit_function(function)
    return tuple(sorted(search.values)) if search.is_complete else None


class _Search:
    """Collects the outside values, such as globals, that a function and the functions it calls can read.

    Any name in a function may be a member of each module that it reads: `tl.max` may also mean `settings.max`.
    """

    def __init__(self) -> None:
        self.values: set[tuple[str, str]] = set()
        # By ids; the values keep the objects alive, so that no other one gets the same id.
        self.visited: dict[tuple[int, int], object] = {}
        self.is_complete = True

    def visit_function(self, function: Any) -> None:
        """Add the globals, closure variables and default values that a function can read."""
        inner = getattr(function, "fn", None) or getattr(function, "__func__", function)
        inner = getattr(inner, "fn", inner)
        code = getattr(inner, "__code__", None)
        if code is None or self._is_visited(inner):
            return
        names = frozenset(name for part in code_objects(code) for name in (*part.co_names, *part.co_freevars))
        defaults = {**dict(enumerate(inner.__defaults__ or ())), **(inner.__kwdefaults__ or {})}
        for name, value in outer_names(inner):
            if name in names:
                self._visit(f"{inner.__module__}.{name}", value, names)
        for key, value in defaults.items():
            self._visit(f"{inner.__module__}.{inner.__qualname__}={key}", value, names)

    def _visit(self, name: str, value: Any, names: frozenset[str]) -> None:
        text = self._text(value)
        if text is not None:
            self.values.add((name, text))
        elif isinstance(value, ModuleType | type):
            if _package_of(value) not in _KNOWN_PACKAGES and not self._is_visited(value, names):
                self._visit_members(value, names)
        elif _package_of(value) not in _KNOWN_PACKAGES or isinstance(value, _CONTAINER_TYPES):
            self.is_complete = False  # an object of the user's may hold anything

    def _text(self, value: Any) -> str | None:
        """Return a text that identifies a value, or None if a text cannot identify the value."""
        value = plain_value(value)
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name} {self._text(value.value)}"
        if isinstance(value, _PLAIN_TYPES):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, _CONTAINER_TYPES):
            return self._container_text(value)
        if any(base.__name__ in ("JITFunction", "JITCallable") for base in type(value).__mro__):
            self.visit_function(value)
            return f"function {getattr(value, 'cache_key', '')} {getattr(value, 'debug', None)}"
        if isinstance(value, FunctionType) and _package_of(value) not in _KNOWN_PACKAGES:
            self.visit_function(value)
            return f"code {_code_text(value.__code__)}"
        return _type_text(value)

    def _container_text(self, value: Any) -> str | None:
        if len(value) > _MAX_OBJECTS or "..." in str(value):  # Python shows a container inside itself as `...`
            return None
        items = [item for pair in value.items() for item in pair] if isinstance(value, dict) else list(value)
        texts = [self._text(item) for item in items]
        if any(text is None for text in texts):
            return None
        return f"{type(value).__name__} {sorted(map(str, texts)) if isinstance(value, set | frozenset) else texts}"

    def _visit_members(self, value: Any, names: frozenset[str]) -> None:
        """Add the members of a module or class that a function may use."""
        name = f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) else value.__name__
        for member in names:
            try:
                member_value = getattr(value, member)
            except Exception:  # noqa: BLE001, S112  a property of the user's
                continue
            self._visit(f"{name}.{member}", member_value, names)
        for method in getattr(value, "hash_attrs", ()):  # methods of a Triton aggregate, including its constructor
            self._visit(f"{name}.{getattr(method, '__name__', '')}", method, names)

    def _is_visited(self, value: Any, names: frozenset[str] | None = None) -> bool:
        """Mark a function, or the members `names` of a module or class, as visited.

        Return whether to skip them, because they were visited before or the search is incomplete.
        """
        key = id(value), id(names)
        if key in self.visited:
            return True
        self.visited[key] = value, names
        self.is_complete = self.is_complete and len(self.visited) < _MAX_OBJECTS
        return not self.is_complete


def _package_of(value: Any) -> str:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(type(value), "__module__", "")
    if isinstance(value, type) or callable(value):
        name = getattr(value, "__module__", name)
    return str(name or "").partition(".")[0]


def _type_text(value: Any) -> str | None:
    """Return a type of Triton's as text, or None for any other value."""
    return f"dtype {value}" if type(value).__name__ in ("dtype", "pointer_type", "block_type") else None


def _code_text(code: CodeType) -> str:
    constants = [_code_text(value) if isinstance(value, CodeType) else repr(value) for value in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names}"


def outer_names(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) pairs for the globals and closure variables that a function and its inner functions use."""
    for name in {name for code in code_objects(function.__code__) for name in code.co_names}:
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # the variable may not be assigned yet
            yield name, cell.cell_contents


def code_objects(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code object, and the code objects of the functions defined inside the function."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_objects(constant)
