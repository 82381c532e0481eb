"""Notebooks: the cell magic `%%cuda`, which compiles a cell and binds its kernels.

`%load_ext jitload` registers it. An error is shown under the cell with its line marked, a build that takes more than
a second shows its stage, and what kernels print with `printf` appears in the cell.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from IPython.core.error import UsageError  # noqa: TID253  `%load_ext` imports this module
from IPython.core.magic import Magics, cell_magic, magics_class  # noqa: TID253
from IPython.core.magic_arguments import argument, magic_arguments  # noqa: TID253

from jitload import stages
from jitload.api import load_inline
from jitload.errors import JitLoadError
from jitload.launch import Launch
from jitload.loader.function import TypedFunction
from jitload.loader.module import Module

_FIELD = re.compile(r"(?:^|\s)(\w+(?:\.\w+)?)=(?!=)")
_SHOW_AFTER_S = 1.0  # a shorter build shows nothing


def load_ipython_extension(shell: Any) -> None:
    """Register `%%cuda` and its completion."""
    shell.register_magics(CudaMagics)
    shell.set_hook("complete_command", _complete, str_key="%%cuda")
    shell.events.register("post_run_cell", _flush_device_printf)
    shell.inspector.info = functools.partial(_describe, shell.inspector.info)


def unload_ipython_extension(shell: Any) -> None:
    """Remove what `load_ipython_extension` registered, except for the completion."""
    shell.magics_manager.magics["cell"].pop("cuda", None)
    shell.events.unregister("post_run_cell", _flush_device_printf)
    if isinstance(describe := shell.inspector.info, functools.partial):
        shell.inspector.info = describe.args[0]


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
    @argument("--flags", default="", help="compiler options in one word: '-O3 -DN=4'")
    @argument("--include", action="append", default=[], metavar="DIR", help="a directory to search for headers")
    @argument("--debug", action="store_true", help="compile for a debugger")
    @cell_magic
    def cuda(self, line: str, cell: str) -> Module:
        """Compile the cell, and bind its kernels by their names."""
        options = self.cuda.parser.parse_args(_split(line))
        build = {
            "arch": tuple(options.arch.split(",")) if "," in options.arch else options.arch,
            "extra_cuda_cflags": shlex.split(options.flags),
            "extra_include_paths": options.include,
            "debug": options.debug,
        }
        name = options.name or "cell"
        if not name.isidentifier():
            raise UsageError(f"%%cuda {name}: the name of the module must be an identifier")
        try:
            with _shown_stages():
                module = _load(name, cell, read_launches(options.launch), build)
        except JitLoadError as error:
            text = "\n".join((f"{type(error).__name__}: {error}", *error.__notes__))
            error._render_traceback_ = lambda: [text]  # type: ignore[attr-defined]  # IPython shows this alone
            raise
        if options.name in module:
            raise UsageError(f"%%cuda {name}: a kernel has the same name; choose another for the module")
        self.shell.push({kernel: module[kernel] for kernel in module})
        if options.name:
            self.shell.push({options.name: module})
        return module


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%%cuda {line}: {error}") from None


def _load(name: str, cell: str, launches: Mapping[str, Launch], build: Mapping[str, Any]) -> Module:
    """Load the module with all kernels of the cell, those that `--launch` does not name included."""
    if not launches:
        return load_inline(name, cuda_sources=cell, **build)
    kernels = {launch.kernel or exported for exported, launch in launches.items()}
    others = [kernel for kernel in load_inline(name, cuda_sources=cell, **build) if kernel not in kernels]
    functions = {**launches, **{kernel: Launch() for kernel in others}}
    return load_inline(name, cuda_sources=cell, functions=functions, **build)


# ---- launches ----------------------------------------------------------------------------------------------------


def read_launches(texts: Sequence[str]) -> dict[str, Launch]:
    """Return the launches that the options `--launch` describe.

    Example:
        >>> read_launches(["add: grid=ceil_div(n, 256) block=256"])["add"].block
        256
    """
    launches = {}
    for text in texts:
        name, colon, fields = text.partition(":")
        if not colon or not name.strip().isidentifier():
            raise UsageError(f"--launch {text!r}: begin with the name of the kernel and a colon, 'add: grid=… block=…'")
        launches[name.strip()] = _read_launch(fields, text)
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
    """Return a number, a tuple of expressions, or an expression."""
    try:
        body = ast.parse(text, mode="eval").body
    except SyntaxError:
        return text  # such as scale<float>
    if isinstance(body, ast.Tuple):
        return tuple(ast.unparse(part) for part in body.elts)
    return body.value if isinstance(body, ast.Constant) else text


# ---- output of builds and kernels --------------------------------------------------------------------------------


@contextmanager
def _shown_stages() -> Iterator[None]:
    """Show the stage of a build and its seconds once it has taken a second."""
    stage, started, is_over = "", time.monotonic(), threading.Event()

    def listen(description: str) -> None:
        nonlocal stage
        stage = description

    def show() -> None:
        width = 0
        while not is_over.wait(_SHOW_AFTER_S if width == 0 else 0.5):
            line = f"{stage or 'jitload builds the cell'}, {time.monotonic() - started:.0f} s"
            width = max(width, len(line))
            sys.stderr.write(f"\r{line:{width}}")
            sys.stderr.flush()
        if width:
            sys.stderr.write(f"\r{f'jitload took {time.monotonic() - started:.1f} s':{width}}\n")

    stages.listeners.append(listen)
    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stages.listeners.remove(listen)
        is_over.set()
        thread.join()


def _flush_device_printf(_result: object) -> None:
    """Show what kernels printed under the cell that launched them; the driver buffers it until the GPU is idle."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    ctypes.CDLL(None).fflush(None)


# ---- help and completion -----------------------------------------------------------------------------------------


def _describe(describe: Callable[..., dict[str, Any]], obj: object, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return what `f?` and `f??` show: of a kernel its signature and comment, or its CUDA source."""
    facts = describe(obj, *args, **kwargs)
    if isinstance(obj, TypedFunction):
        facts.update(file=None, class_docstring=None, call_docstring=None, source=obj._jitload_source())
    return facts


def _complete(_shell: object, event: Any) -> list[str]:
    """Return the options of `%%cuda`, or after `--arch` the names of architectures."""
    words = event.line.split()
    before = words[-1] if event.line.endswith(" ") else words[-2]
    if before == "--arch":
        return ["native", "cpu", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"]
    return [
        option for action in CudaMagics.cuda.parser._actions for option in action.option_strings if "-h" not in option
    ]
