"""The cell magic `%%cuda` for notebooks, which compiles a cell and makes its kernels variables of the notebook.

`%load_ext jitload` registers the magic. An error is shown under the cell, with the line at fault marked. The output of
`printf` in kernels appears in the cell.
"""

from __future__ import annotations

import ctypes
import fcntl
import keyword
import shlex
import struct
import sys
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import IPython
from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from jitload.api import load_inline
from jitload.errors import JitLoadError
from jitload.loader.module import Module
from jitload.words import in_options

# What messages contain in place of arguments of `load_inline` and of advice for Python (`words.Argument`).
_OPTIONS = {
    "arch": "--arch ",
    "debug": "--debug",
    "sanitize": "--sanitize",
    "functions": "--functions ",
    "extra_cflags": "--flags=",
    "extra_cuda_cflags": "--flags=",
    "extra_include_paths": "--include ",
    "host kind": "or export them with TVM_FFI_DLL_EXPORT_TYPED_FUNC",
    "instantiation": "add `template __global__ void {1}<float>(…);`",
    "kernel name": "leave out its namespace and its template arguments",
    "launch": "rename the kernel",
    "no source": "the cell is empty",
}
_NEEDED_BY_IPYTHON = frozenset({"In", "Out", "get_ipython", "exit", "quit", "_", "__", "___"})


def load_ipython_extension(shell: Any) -> None:
    """Register `%%cuda`."""
    unload_ipython_extension(shell)  # an earlier call may have registered it
    shell.register_magics(CudaMagics)
    shell.events.register("post_run_cell", _end_cell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove what `load_ipython_extension` registered."""
    shell.magics_manager.magics["cell"].pop("cuda", None)
    with suppress(ValueError):  # raised if the event is not registered
        shell.events.unregister("post_run_cell", _end_cell)


@magics_class
class CudaMagics(Magics):  # type: ignore[misc]  # IPython is not checked here
    """The magic `%%cuda`."""

    @magic_arguments()
    @argument("name", nargs="?", help="bind the module to this name, too")
    @argument("--arch", default="native", help="the architecture, such as sm_90a or cpu")
    @argument("--functions", default="", metavar="'F,G'", help="functions of the host code to export")
    @argument("--flags", default="", help="compiler options in one word: '-O3 -DN=4'")
    @argument("--include", action="append", default=[], metavar="DIR", help="a directory to search for headers")
    @argument("--sanitize", action="store_true", help="check what kernels on the CPU access and compute")
    @argument("--debug", action="store_true", help="compile for a debugger")
    @cell_magic
    def cuda(self, line: str, cell: str) -> Module:
        """Compile the cell, and bind its kernels by their names."""
        try:
            options = self.cuda.parser.parse_args(_split(line))
        except UsageError as error:
            raise UsageError(f"%%cuda {line}: {error}. %%cuda? shows the options.") from None
        build = {
            "arch": tuple(options.arch.split(",")) if "," in options.arch else options.arch,
            "extra_cuda_cflags": _split(options.flags),
            "extra_include_paths": options.include,
            "sanitize": ("address", "undefined") if options.sanitize else None,
            "debug": options.debug,
            "isolate": True,  # NVRTC runs in a child process: it can be stopped, and its crash is an error
        }
        name = options.name or "cell"
        if not _is_variable(name):
            raise UsageError(f"%%cuda {name}: the name of the module must be an identifier that IPython does not use")
        try:
            module = _load(name, cell, options.functions.replace(",", " ").split() or None, build)
        except (JitLoadError, KeyboardInterrupt) as error:
            stopped = str(error) or f"the build of {name!r} was stopped"
            message = in_options(error, _OPTIONS) if isinstance(error, JitLoadError) else stopped
            text = f"{type(error).__name__}: {message}"
            error._render_traceback_ = lambda: [text]  # type: ignore[union-attr]  # no traceback is shown
            raise
        self._bind(module, options.name)
        return module

    def _bind(self, module: Module, name: str | None) -> None:
        """Bind the module's functions to their names in the notebook, and the module to `name` unless that is None."""
        if name in module:
            raise UsageError(f"%%cuda {name}: a kernel has the same name; choose another for the module")
        if not len(module):
            raise UsageError("%%cuda: the cell exports nothing. Name functions of its host code: --functions 'f,g'")
        hidden = [function for function in module if not _is_variable(function)]
        if hidden and not name:
            raise UsageError(
                f"%%cuda: {hidden[0]!r} cannot be a variable of the notebook. Name the module, `%%cuda mod`, and use "
                f"mod[{hidden[0]!r}]"
            )
        self.shell.push({function: module[function] for function in module if function not in hidden})
        if name:
            self.shell.push({name: module})


def _is_variable(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and name not in _NEEDED_BY_IPYTHON


def _split(line: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if "--flags" in words[:-1]:  # in `--flags -O3`, argparse would take -O3 for an option of its own
        index = words.index("--flags")
        words[index : index + 2] = [f"--flags={words[index + 1]}"]
    return words


def _load(name: str, cell: str, functions: list[str] | None, build: Mapping[str, Any]) -> Module:
    """Load a module with the functions, or with all kernels of the cell."""
    # A cell for PyTorch with host code only needs neither nvcc nor a GPU.
    if "#include <torch/" in cell and "__global__" not in cell and "<<<" not in cell:
        options = {"extra_cflags" if key == "extra_cuda_cflags" else key: value for key, value in build.items()}
        return load_inline(name, cpp_sources=cell, functions=functions, **options)
    return load_inline(name, cuda_sources=cell, functions=functions, **build)


# ---- output of kernels -------------------------------------------------------------------------------------------


def _end_cell(result: Any) -> None:
    """Show the output of kernels under the cell that launched them, and let the cell fail if a kernel failed."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()  # makes the driver print the buffered output of kernels
        except RuntimeError as error:
            if result.success:
                result.error_in_exec = error  # so that "Run all" stops here
                IPython.get_ipython().showtraceback((type(error), error, None))
    ctypes.CDLL(None).fflush(None)
    if hasattr(sys.stdout, "watch_fd_thread"):
        _await_reader()


def _await_reader() -> None:
    """Wait until ipykernel has read standard output. Text that it reads later would appear under the next cell."""
    empty = 0
    for _ in range(200):
        size = bytearray(4)
        try:
            fcntl.ioctl(1, termios.FIONREAD, size)
        except OSError:
            return  # standard output is not a pipe
        time.sleep(0.001)  # let the thread that reads run
        empty = empty + 1 if struct.unpack("i", size) == (0,) else 0
        if empty == 10:  # once is not enough: on a busy machine, the thread takes a while to pass on what it has read
            return
