"""A stub `libcuda.so.1` that records every driver call, and what the tests ask of it.

The library is made of the C++ files beside this one. Once loaded, it answers to `libcuda.so.1` in this process: the
dynamic loader knows a loaded library by its soname. What a process has loaded through it (libraries, kernels and
their attributes) outlives `StubDriver.reset`, as generated libraries keep their handles.
"""

import ctypes
import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .records import Call, LaunchRecord, read_calls, read_launch

SONAME = "libcuda.so.1"


def build_stub(directory: Path, *, without: Sequence[str] = ()) -> Path:
    """Compile the stub into `directory`, unless it is there, and return its path.

    Args:
        directory: Where to put `libcuda.so.1`; made if it is missing.
        without: Entry points to leave out, to play an older driver: `("cuFuncLoad",)`.
    """
    library_path = directory / SONAME
    if library_path.exists():
        return library_path
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as work:
        exports = Path(work, "exports.map")
        exports.write_text(_export_map(without), encoding="utf-8")
        built = Path(work, SONAME)
        subprocess.run([*find_compiler(), *_compiler_arguments(exports, built)], check=True)
        built.replace(library_path)
    return library_path


def _export_map(without: Sequence[str]) -> str:
    hidden = "".join(f"{name}; " for name in without)
    return f"{{ global: cu*; stub_*; local: {hidden}*; }};\n"


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler."""
    return shlex.split(os.environ.get("CXX") or "c++")


def _compiler_arguments(exports: Path, built: Path) -> list[str]:
    sources = sorted(str(path) for path in Path(__file__).parent.glob("stub_*.cc"))
    flags = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-pthread"]
    links = ["-shared", f"-Wl,-soname,{SONAME}", f"-Wl,--version-script={exports}", "-Wl,-z,defs"]
    return [*flags, *links, *sources, "-o", str(built)]


class StubDriver:
    """The stub driver loaded in this process; there can be one of it.

    Attributes:
        path: The library.
        library: The library as ctypes sees it, to call the driver's functions directly.

    Example:
        >>> driver = StubDriver(build_stub(tmp_path))
        >>> driver.fail("cuLaunchKernel", 700)
        >>> driver.launches()
        []
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = _load(path)
        self.library.stub_log_read.restype = ctypes.c_size_t
        self.library.stub_log_read.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self.library.stub_create_context.restype = ctypes.c_void_p
        self.library.stub_create_stream.restype = ctypes.c_void_p

    def reset(self) -> None:
        """Go back to two idle sm_90 devices, an empty log and no failures; loaded libraries stay."""
        self.library.stub_reset()

    def environment(self, log_path: Path | None = None) -> dict[str, str]:
        """Return the environment of a process that finds the stub as its driver.

        Args:
            log_path: Where the process leaves its log when it ends; `read_calls` reads it.
        """
        search = [str(self.path.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        log = {} if log_path is None else {"STUB_CUDA_LOG": str(log_path)}
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(search), **log}

    def calls(self, name: str | None = None) -> list[Call]:
        """Return the recorded calls in order, all of them or those of one function (without `_v2`)."""
        return [call for call in read_calls(self._log()) if name in (None, call.name)]

    def launches(self) -> list[LaunchRecord]:
        """Return the launches that were accepted, in order."""
        names = ("cuLaunchKernel", "cuLaunchKernelEx")
        return [read_launch(call) for call in self.calls() if call.name in names and call.result == 0]

    def clear(self) -> None:
        """Forget the calls so far, and nothing else."""
        self.library.stub_log_clear()

    def _log(self) -> str:
        size = self.library.stub_log_read(None, 0)
        while True:
            text = ctypes.create_string_buffer(size + 1)
            written = self.library.stub_log_read(text, size)
            if written <= size:  # otherwise another thread has called the driver in between
                return text.raw[:written].decode()
            size = written

    def fail(self, name: str, result: int, *, skip: int = 0, count: int = -1) -> None:
        """Let a function return `result` after `skip` calls, `count` times (below zero: from then on)."""
        assert hasattr(self.library, name), f"no driver function {name!r}"
        self.library.stub_fail(name.encode(), result, skip, count)

    def set_initialized(self, is_initialized: bool) -> None:  # noqa: FBT001  a setter
        """Set whether cuInit counts as called; `reset` goes back to what has really happened in this process."""
        self.library.stub_set_initialized(int(is_initialized))

    def set_device_count(self, count: int) -> None:
        """Set how many devices there are, up to 16."""
        self.library.stub_set_device_count(count)

    def set_attribute(self, device: int, attribute: int, value: int) -> None:
        """Set a device attribute by its number in cuda.h."""
        self.library.stub_set_attribute(device, attribute, value)

    def set_capability(self, device: int, major: int, minor: int) -> None:
        """Set the compute capability of a device."""
        self.set_attribute(device, 75, major)
        self.set_attribute(device, 76, minor)

    def set_primary_active(self, device: int, is_active: bool) -> None:  # noqa: FBT001  a setter
        """Set whether a device's primary context is in use already."""
        self.library.stub_set_primary_active(device, int(is_active))

    def set_capturing(self, is_capturing: bool) -> None:  # noqa: FBT001  a setter
        """Begin or end a graph capture of mode "global" by this thread, on every stream but the default ones."""
        self.library.stub_set_capturing(int(is_capturing))

    def use_device(self, device: int | None) -> None:
        """Make a primary context this thread's current one, as a framework does; None for no context at all."""
        self.library.stub_use_device(-1 if device is None else device)

    def current_device(self) -> int | None:
        """Return the device of this thread's current context."""
        device: int = self.library.stub_current_device()
        return None if device < 0 else device

    def create_context(self, device: int) -> int:
        """Return a handle of a context beside the primary one, such as a green context."""
        return int(self.library.stub_create_context(device))

    def create_stream(self, device: int) -> int:
        """Return a handle of a stream that belongs to a device; other numbers are streams of any device."""
        return int(self.library.stub_create_stream(device))


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    loaded = _loaded_driver()
    assert loaded is not None, path
    assert loaded._handle == library._handle, f"another {SONAME} is loaded in this process"
    return library


def has_real_driver() -> bool:
    """Tell whether this process has loaded a CUDA driver that is not the stub."""
    loaded = _loaded_driver()
    return loaded is not None and not hasattr(loaded, "stub_reset")


def _loaded_driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None
