"""The cell magic `%%cuda` for notebooks, which compiles a cell and makes its kernels variables of the notebook.

`%load_ext jitload` registers the magic. An error is shown under the cell, with the line at fault marked. A build that
takes more than a second shows its current stage. The output of `printf` in kernels appears in the cell.
"""

from __future__ import annotations

import ast
import ctypes
import dataclasses
import fcntl
import functools
import keyword
import re
import shlex
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import IPython
from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from jitload.api import load_inline
from jitload.building import stages
from jitload.cpptext.declarations import find_candidates
from jitload.errors import JitLoadError, LaunchSpecError, nearest_name
from jitload.inspection.listing import read_source
from jitload.loader.function import TypedFunction
from jitload.loader.module import Module
from jitload.request.launch import Launch
from jitload.words import in_options

_FIELD = re.compile(r"(?:^|\s)(\w+(?:\.\w+)?)=(?!=)")
_HIDES_KERNELS = re.compile(r"#\s*include\s*[\"\w]|#\s*define\b(?:\\\r?\n|.)*__global__")
_FLAG_HIDES_KERNELS = re.compile(r"-I|include|-isystem|__global__")
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
_SHOW_AFTER_S = 1.0  # seconds; a shorter build shows no progress
_NEEDED_BY_IPYTHON = frozenset({"In", "Out", "get_ipython", "exit", "quit", "_", "__", "___"})


def load_ipython_extension(shell: Any) -> None:
    """Register `%%cuda`, its completion, and the help for kernels."""
    unload_ipython_extension(shell)  # an earlier call may have registered them
    shell.register_magics(CudaMagics)
    shell.set_hook("complete_command", _complete, str_key="%%cuda")
    shell.events.register("post_run_cell", _end_cell)
    name = _describer()
    setattr(shell.inspector, name, functools.partial(_describe, getattr(shell.inspector, name)))


def unload_ipython_extension(shell: Any) -> None:
    """Remove what `load_ipython_extension` registered."""
    shell.magics_manager.magics["cell"].pop("cuda", None)
    if hooks := shell.strdispatchers.get("complete_command"):
        hooks.strs.pop("%%cuda", None)
    with suppress(ValueError):  # raised if the event is not registered
        shell.events.unregister("post_run_cell", _end_cell)
    describe = getattr(shell.inspector, name := _describer())
    if isinstance(describe, functools.partial) and describe.func is _describe:
        setattr(shell.inspector, name, describe.args[0])


def _describer() -> str:
    """Return the name of the inspector's `info` method, which was private before IPython 8."""
    return "info" if IPython.version_info >= (8,) else "_info"


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
            raise UsageError(f"%%cuda {line}: {error}. {_suggestion(str(error))}%%cuda? shows the options.") from None
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
            with _shown_stages():
                module = _load(name, cell, functions, build)
            module.__dict__["_jitload_is_cell"] = True  # then its table names options
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


def _suggestion(error_text: str) -> str:
    """Return the question whether another option was meant, or "" unless the error is about an unknown option."""
    unknown = re.search(r"unrecognized arguments: (--\w+)", error_text)
    meant = nearest_name(unknown[1], _option_names()) if unknown else ""
    return f"Did you mean {meant}? " if meant else ""


def _option_names() -> list[str]:
    actions = CudaMagics.cuda.parser._actions
    return [option for action in actions for option in action.option_strings if "-h" not in option]


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
    kernels = [] if build["extra_include_paths"] else _find_kernels(cell, build["extra_cuda_cflags"])
    with suppress(LaunchSpecError):  # raised if the preprocessor removes one of these kernels
        if kernels:
            return _load_all(name, cell, functions, kernels, build)
    try:
        kernels = list(load_inline(name, cuda_sources=cell, **build))
    except LaunchSpecError:  # raised if all kernels in the cell are templates
        kernels = []
    return _load_all(name, cell, functions, kernels, build)


def _find_kernels(cell: str, flags: Sequence[str]) -> list[str]:
    """Return the names of the kernels, or [] if some kernels may come from templates, macros or other files."""
    candidates = find_candidates([cell])
    if _HIDES_KERNELS.search(cell) or _FLAG_HIDES_KERNELS.search(" ".join(flags)):
        return []
    return [] if any(kernel.is_template for kernel in candidates) else [kernel.name for kernel in candidates]


def _load_all(
    name: str, cell: str, functions: Mapping[str, Launch | None], kernels: Sequence[str], build: Mapping[str, Any]
) -> Module:
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
    names = [field.name for field in dataclasses.fields(Launch)]
    for name in values.keys() - names:
        suggestion = nearest_name(name, names)
        hint = f"did you mean {suggestion!r}?" if suggestion else f"its fields are {', '.join(names)}"
        raise UsageError(f"--launch {text!r}: Launch has no field {name!r}; {hint}")
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


# ---- output of builds and kernels --------------------------------------------------------------------------------


@contextmanager
def _shown_stages() -> Iterator[None]:
    """Show the current stage of a build and its duration, once the build has taken a second."""
    stage, started, is_over = "", time.monotonic(), threading.Event()

    def listen(description: str) -> None:
        nonlocal stage
        stage = description

    def show() -> None:
        width = 0
        while not is_over.wait(_SHOW_AFTER_S if width == 0 else 0.5):
            line = f"{stage or 'jitload builds the cell'}, {time.monotonic() - started:.0f} s"
            width = max(width, len(line))
            sys.stdout.write(f"\r{line:{width}}")
            sys.stdout.flush()
        if width:
            sys.stdout.write(f"\r{f'jitload took {time.monotonic() - started:.1f} s':{width}}\n")

    stages.listeners.append(listen)
    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stages.listeners.remove(listen)
        is_over.set()
        thread.join()


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


# ---- help and completion -----------------------------------------------------------------------------------------


def _describe(describe: Callable[..., dict[str, Any]], obj: object, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return IPython's description of an object for `f?` and `f??`.

    For a kernel, this is the signature, the comment and the CUDA source.
    """
    facts = describe(obj, *args, **kwargs)
    if isinstance(obj, TypedFunction):
        source = read_source(obj._jitload_facts, obj._jitload_library.origin)
        facts.update(file=None, class_docstring=None, call_def=None, call_docstring=None, source=source)
    return facts


def _complete(_shell: object, event: Any) -> list[str]:
    """Return completions for `%%cuda`: its options, or names of architectures after `--arch`."""
    words = event.line.split() if event.line.endswith(" ") else event.line.split()[:-1]
    if words[-1:] == ["--arch"]:
        return ["native", "cpu", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"]
    return _option_names()
