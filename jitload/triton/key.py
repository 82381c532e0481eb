"""A kernel and what is wanted of it in, the parts of its key out: everything that can change the machine code."""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any

from jitload.errors import JitLoadError
from jitload.model import Cubin
from jitload.triton.globals import dotted_names, outer_values, plain_value, type_text
from jitload.triton.kernel import GivenKernel
from jitload.triton.plan import Plan
from jitload.triton.versions import Triton

Part = tuple[str, str | tuple[str, ...]]

# What says where Triton keeps, prints or finds things that are not compiled in.
_HARMLESS = frozenset(
    f"TRITON_{name}"
    for name in (
        "HOME", "CACHE_DIR", "DUMP_DIR", "KERNEL_DUMP", "PRINT_AUTOTUNING", "CACHE_AUTOTUNING", "CACHE_MANAGER",
        "REDIS_HOST", "REDIS_PORT", "REDIS_KEY_FORMAT", "REMOTE_CACHE_BACKEND", "LIBCUDA_PATH", "CUDACRT_PATH",
        "CUDART_PATH", "ALWAYS_COMPILE", "STORE_BINARY_ONLY", "DUMP_PTXAS_LOG", "FRONT_END_DEBUGGING",
    )
)  # fmt: skip
_OTHERS = ("PTXAS_OPTIONS", "DISABLE_PTXAS_OPT", "USE_IR_LOC", "LLVM_EXTRACT_DI_LOCAL_VARIABLES")
_FILES = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH", "TRITON_LIBDEVICE_PATH")


def kernel_parts(given: GivenKernel, triton: Triton) -> tuple[tuple[Part, ...], bool]:
    """Return what decides the machine code besides a plan, and whether a cache may answer for it."""
    try:
        key = str(given.function.cache_key)
        used: Mapping[Any, Any] = given.function.used_global_vals
    except Exception:  # noqa: BLE001  a source that cannot be read, whatever the reason; the compile says it
        return (("nobody_knows", secrets.token_hex(16)),), False
    values = outer_values(given.function)
    is_complete = values is not None and not _is_overridden()
    texts = tuple(sorted(f"{name}={_plain(value)}" for (name, _), (value, _) in used.items()))
    parts: list[Part] = [
        ("triton", _identity(triton)),
        ("kernel", (given.name, key, *(str(getattr(given.function, name, None)) for name in ("debug", "noinline")))),
        ("globals", texts),
        ("outer", tuple(f"{name}={value}" for name, value in values or ())),
        ("environment", tuple(_environment())),
    ]
    if not is_complete:
        parts.append(("nobody_knows", secrets.token_hex(16)))
    return tuple(parts), is_complete


def _plain(value: Any) -> str:
    return repr(getattr(value, "value", value))


def _is_overridden() -> bool:
    """Tell whether something else than the source decides: files that Triton takes instead, or a hook in its stages."""
    if os.environ.get("TRITON_KERNEL_OVERRIDE", "0") not in ("", "0"):
        return True
    with suppress(ImportError, AttributeError):
        from triton import knobs

        return knobs.runtime.add_stages_inspection_hook is not None
    return False


def _identity(triton: Triton) -> tuple[str, ...]:
    """Return what Triton is: its version, and its compiler's digest as the installer recorded it.

    It is the same wherever the same wheel is installed. A compiler that was built or changed since then, or that no
    installer recorded, is told by its size and time.
    """
    import triton as package

    library, record = _places(package.__file__, package.__version__)
    return (str(triton), _recorded(library, record) or _state(library))


@functools.lru_cache(maxsize=4)
def _places(package: str, version: str) -> tuple[str, str]:
    home = Path(package).parent
    return str(home / "_C" / "libtriton.so"), str(home.parent / f"triton-{version}.dist-info" / "RECORD")


def _recorded(library: str, record: str) -> str:
    try:
        found, written = os.stat(library), os.stat(record)
    except OSError:
        return ""
    digest, size = _row_of_the_compiler(record, written.st_mtime_ns)  # an installer writes the list after the files
    return digest if size == str(found.st_size) and found.st_mtime_ns <= written.st_mtime_ns else ""


@functools.lru_cache(maxsize=4)
def _row_of_the_compiler(record: str, _mtime_ns: int) -> tuple[str, str]:
    with suppress(OSError, ValueError):
        for line in Path(record).read_text(encoding="utf-8").splitlines():
            if line.startswith("triton/_C/libtriton.so,sha256="):
                _, digest, size = line.split(",")
                return digest, size
    return "", ""


def _state(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return "absent"
    return f"{found.st_size} {found.st_mtime_ns}"


def is_in_key(name: str) -> bool:
    """Tell whether a variable of the environment changes what Triton makes."""
    return (name.startswith("TRITON_") and name not in _HARMLESS) or name in _OTHERS


def _environment() -> Iterator[str]:
    for name, value in sorted(os.environ.items()):
        if is_in_key(name):
            yield f"{name}={value}"
    yield from (f"{name}: {_state(os.environ[name])}" for name in _FILES if name in os.environ)
    try:
        from triton._C.libtriton import get_cache_invalidating_env_vars

        yield from (f"{name}={value}" for name, value in sorted(get_cache_invalidating_env_vars().items()))
    except ImportError:
        yield "cache-invalidating variables unknown"


def plan_parts(plan: Plan) -> tuple[tuple[str, ...], bool]:
    """Return a plan as texts, and whether they say all of it."""
    constants = [(path, _constant(value)) for path, value in sorted(plan.constants.items())]
    options = [(name, _constant(value)) for name, value in sorted(plan.options.items())]
    is_complete = all(text is not None for _, text in [*constants, *options])
    texts = (
        *(f"{name}: {types!r}" for name, types in plan.types),
        *(f"{path} = {text}" for path, text in constants),
        *(f"multiple of 16: {path}" for path in sorted(plan.multiples)),
        *(f"constexpr {name}" for name in sorted(plan.constexprs)),
        *(f"{name}={text}" for name, text in options),
    )
    return (texts if is_complete else (*texts, secrets.token_hex(16))), is_complete


def _constant(value: Any) -> str | None:
    """Return a value that is compiled in as text, or None where its text says too little."""
    value = plain_value(value)
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, tuple | list):
        inner = [_constant(item) for item in value]
        return None if None in inner else f"{type(value).__name__} {inner}"
    if key := getattr(value, "cache_key", None):
        outer = outer_values(value)
        return None if outer is None else f"function {key} {getattr(value, 'debug', None)} {outer}"
    return type_text(value)


def cubin_parts(cubin: Cubin) -> tuple[str, ...]:
    """Return what a finished cubin is.

    Raises:
        JitLoadError: It is no Triton kernel's.
    """
    if cubin.triton is None:
        raise JitLoadError("the Cubin is no Triton kernel's: give what extract_triton() returns")
    return (hashlib.sha256(cubin.data).hexdigest(), cubin.arch, repr(cubin.triton))


def grid_key(grid: Any) -> tuple[str, ...]:
    """Return what decides the expressions of a grid; a function is not read for that, only its code is."""
    if not isinstance(grid, FunctionType):
        return (repr(grid),)
    code = grid.__code__
    values = [(name, _in_a_grid(plain_value(value))) for name, value in dotted_names(grid)]
    words = (code.co_consts, code.co_names, code.co_varnames, code.co_freevars, values)
    return ("function", sys.version, code.co_code.hex(), *map(repr, words))


def _in_a_grid(value: Any) -> str:
    """Return what an expression makes of a value from outside: a number, or the function that is called."""
    if isinstance(value, int):
        return repr(int(value))
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__name__)}"
