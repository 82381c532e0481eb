"""The cell magic `%%cuda` for notebooks, which compiles a cell and makes its kernels variables of the notebook.

`%load_ext jitload` registers the magic. An error is shown under the cell, with the line at fault marked. The output of
`printf` in kernels appears in the cell.
"""

from __future__ import annotations

import ast
import ctypes
import fcntl
import keyword
import re
import shlex
import struct
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import IPython
from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from jitload.api import load_inline
from jitload.errors import JitLoadError, LaunchSpecError
from jitload.loader.module import Module
from jitload.request.launch import Launch
from jitload.words import in_options

_FIELD = re.compile(r"(?:^|\s)(\w+(?:\.\w+)?)=(?!=)")
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
    "instantiation": "--launch '{0}: kernel={1}<…>'",
    "kernel name": "name the kernel itself with --launch 'f: kernel=…'",
    "launch": "--launch '{0}: kernel={1}'",
    "no source": "the cell is empty",
}
_NEEDED_BY_IPYTHON = frozenset({"In", "Out", "get_ipython", "exit", "quit", "_", "__", "___"})


def load_ipython_extension(shell: Any) -> None:
    """Register `%%cuda`."""
    unload_ipython_extension(shell)  # an earlier call may have registered them
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
    @argument(
        "--launch",
        action="append",
        default=[],
        metavar="'KERNEL: grid=… block=…'",
        help="launch a kernel like this; fields of jitload.Launch, and args.n=x.numel() for a computed parameter",
    )
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
            exports = dict.fromkeys(options.functions.replace(",", " ").split())
            functions = {**exports, **read_launches(options.launch)}
            module = _load(name, cell, functions, build)
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


def _load(name: str, cell: str, functions: Mapping[str, Launch | None], build: Mapping[str, Any]) -> Module:
    """Load a module with all kernels of the cell, including kernels that `--launch` does not name."""
    if (
        "#include <torch/" in cell and "__global__" not in cell and "<<<" not in cell
    ):  # the cell is host code only, which needs neither nvcc nor a GPU
        options = {"extra_cflags" if key == "extra_cuda_cflags" else key: value for key, value in build.items()}
        return load_inline(name, cpp_sources=cell, functions=functions or None, **options)
    if None in functions.values() or not functions:
        return load_inline(name, cuda_sources=cell, functions=functions or None, **build)
    try:
        kernels = list(load_inline(name, cuda_sources=cell, **build))
    except LaunchSpecError:  # raised if all kernels in the cell are templates
        kernels = []
    launched = {launch.kernel or exported for exported, launch in functions.items() if launch}
    others = {kernel: Launch() for kernel in kernels if kernel not in launched}
    return load_inline(name, cuda_sources=cell, functions={**functions, **others}, **build)


# ---- launches ----------------------------------------------------------------------------------------------------


def read_launches(texts: Sequence[str]) -> dict[str, Launch]:
    """Return a mapping from the names of functions to the launches that the `--launch` options describe.

    Example:
        >>> read_launches(["add: grid=ceil_div(n, 256) block=256"])["add"].block
        256
    """
    launches = {}
    for text in texts:
        name, colon, fields = text.partition(":")
        if not colon or not name.strip().isidentifier():
            raise UsageError(f"--launch {text!r}: begin with the name of the kernel and a colon, 'add: grid=… block=…'")
        if name.strip() in launches:
            raise UsageError(f"--launch {text!r}: there is another --launch for {name.strip()!r}")
        try:
            launches[name.strip()] = _read_launch(fields, text)
        except LaunchSpecError as error:
            error.kernel = name.strip()
            raise
    return launches


def _read_launch(fields: str, text: str) -> Launch:
    start, *parts = _FIELD.split(fields)
    if start.strip():
        raise UsageError(f"--launch {text!r}: {start.strip()!r} is not of the form field=value")
    values: dict[str, Any] = {}
    for field, value in zip(parts[::2], parts[1::2], strict=True):
        record, _, key = field.partition(".")
        if key:
            values.setdefault(record, {})[key] = value.strip()
        else:
            values[record] = _value(value.strip())
    try:
        return Launch(**values)
    except TypeError as error:
        raise UsageError(f"--launch {text!r}: {error}") from None


def _value(text: str) -> Any:
    """Return the value of a `--launch` field: a Python constant, a tuple of expressions as text, or the text itself."""
    try:
        body = ast.parse(text, mode="eval").body
    except SyntaxError:
        return text  # a C++ name such as `scale<float>`, which is not Python
    if isinstance(body, ast.Tuple):
        return tuple(str(part.value) if isinstance(part, ast.Constant) else ast.unparse(part) for part in body.elts)
    return body.value if isinstance(body, ast.Constant) else text


# ---- output of kernels ------------------------------------------------------------------------------------------


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
