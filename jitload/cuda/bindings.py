"""Loads the modules of cuda.bindings, and makes them call the NVRTC and the nvJitLink that jitload has chosen.

By itself, cuda.bindings takes a library that another package has loaded, such as torch's NVRTC, or else the newest
installed library. This may not be the NVRTC that `JITLOAD_NVRTC` names and that is part of the cache key.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from jitload.errors import JitLoadError, ToolchainError

_LIBRARIES = {"nvrtc": "NVRTC", "nvjitlink": "nvJitLink"}
_REQUIREMENT = "'cuda-bindings>=12.9.4,<14'"
_lock = threading.Lock()
_threads_in_nvrtc: set[int] = set()
_was_forked_in_nvrtc = False


def _after_fork() -> None:
    global _was_forked_in_nvrtc  # noqa: PLW0603  a fact about the process
    _was_forked_in_nvrtc = bool(_threads_in_nvrtc)


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def inside_nvrtc() -> Iterator[None]:
    """Record that this thread compiles with NVRTC, or loads it, while the `with` block runs.

    A process that is forked meanwhile cannot use NVRTC. It inherits half of the library, or held locks, and none of its
    threads releases them.

    Raises:
        ToolchainError: This process was forked while a thread was in NVRTC.
    """
    if _was_forked_in_nvrtc:
        raise ToolchainError(
            "this process was forked while another thread was compiling with NVRTC, and NVRTC cannot be used in it any "
            "more. Start workers with the 'spawn' or 'forkserver' method, or fork before anything is compiled."
        )
    thread = threading.get_ident()
    _threads_in_nvrtc.add(thread)
    try:
        yield
    finally:
        _threads_in_nvrtc.discard(thread)


def open_nvrtc(path: Path) -> None:
    """Open NVRTC. `load_bindings` then loads it at once, and raises the error if there is one.

    The dynamic loader takes 10 ms to relocate the library. `ctypes.CDLL` keeps the GIL meanwhile, and calls of foreign
    functions do not.
    """
    with inside_nvrtc():
        ctypes.CDLL(None).dlopen(os.fsencode(path), os.RTLD_NOW)


def import_bindings(name: Literal["nvrtc", "nvjitlink", "driver"]) -> Any:
    """Return a module of cuda.bindings, or raise ToolchainError if cuda-bindings is not installed."""
    try:
        return importlib.import_module(f"cuda.bindings.{name}")
    except ImportError as error:
        raise ToolchainError(
            f"compiling for a GPU needs cuda-bindings, which cannot be imported ({error}). "
            f"Install it with: pip install {_REQUIREMENT}"
        ) from error


def check_driver(answer: tuple[Any, ...], problem: str) -> Any:
    """Return the results in a driver function's answer, which is `(status, *results)`.

    A single result is returned without a tuple.

    Raises:
        JitLoadError: The function failed. The message is `problem`, followed by the name of the status.
    """
    status, *values = answer
    if status:
        raise JitLoadError(f"{problem}: {status.name}")
    return values[0] if len(values) == 1 else tuple(values)


def load_bindings(name: Literal["nvrtc", "nvjitlink"], path: Path) -> Any:
    """Return the module of cuda.bindings for NVRTC or nvJitLink, after making it use the library at `path`.

    Raises:
        ToolchainError: The library cannot be loaded, `name` is "nvrtc" and the library is not NVRTC, cuda-bindings is
            not installed, or the module already uses another library. The module looks its functions up only once per
            process.
    """
    library_name = _LIBRARIES[name]
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ToolchainError(f"{library_name} cannot be loaded from {path}: {error}") from error
    if name == "nvrtc" and not hasattr(library, "nvrtcVersion"):
        raise ToolchainError(
            f"{path} is a library, but not NVRTC: set JITLOAD_NVRTC to libnvrtc.so or the directory of a CUDA toolkit"
        )
    bindings = import_bindings(name)
    addresses = _look_up_functions(name, library)
    if any(address not in (0, _address(library, function)) for function, address in addresses.items()):
        raise ToolchainError(
            f"this process cannot use {library_name} from {path}: cuda.bindings already uses another {library_name}, "
            "and it can use only one per process. Start a new process, or set JITLOAD_NVRTC to the library in use."
        )
    return bindings


def _look_up_functions(name: str, library: ctypes.CDLL) -> dict[str, int]:
    """Make a module of cuda.bindings look up its functions in `library`. This has no effect after the first look-up.

    cuda.bindings has no public function to choose the library, or to report which library it uses.

    Returns:
        A dict from the names of the functions to the addresses that cuda.bindings uses.
    """
    modules = (f"cuda.bindings._internal.{name}", f"cuda.bindings._bindings.cy{name}")
    internal: Any = next((sys.modules[module] for module in modules if module in sys.modules), None)
    with _lock:
        try:
            find_library = internal.load_nvidia_dynamic_lib
            internal.load_nvidia_dynamic_lib = lambda _: SimpleNamespace(_handle_uint=library._handle)
            try:
                pointers = internal._inspect_function_pointers()
            finally:
                internal.load_nvidia_dynamic_lib = find_library
            return {function.lstrip("_"): address for function, address in pointers.items()}
        except AttributeError as error:
            raise ToolchainError(
                f"this version of cuda-bindings does not tell which {_LIBRARIES[name]} it uses ({error}). "
                f"Install another one: pip install {_REQUIREMENT}"
            ) from error


def _address(library: ctypes.CDLL, function: str) -> int | None:
    """Return the address of a function, or None if the library does not have it."""
    pointer = getattr(library, function, None)
    return ctypes.cast(pointer, ctypes.c_void_p).value if pointer else None
