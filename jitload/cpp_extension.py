"""`load_inline` and `load` with the signatures of `torch.utils.cpp_extension`, for PyTorch extension sources.

The sources are built without changes, with small headers of jitload's in place of torch's; docs/torch.md says what
differs. A source that uses names that these light headers lack is built by torch itself.

After `install()`, programs that import the functions from torch get the functions of this module instead.
`python -m jitload.cpp_extension program.py` installs them for one program, and `JITLOAD_TORCH=1` in the environment for
every program.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import inspect
import logging
import os
import re
import runpy
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

from jitload.errors import CompileError, ToolchainError
from jitload.host_cpp.torch_errors import missing_names
from jitload.pipeline import load_request
from jitload.request.arguments import (
    OPTION_LISTS,
    Call,
    Functions,
    PathLike,
    Paths,
    Texts,
    TorchText,
    read_options,
    read_texts,
)
from jitload.request.request import make_request
from jitload.request.sources import file_sources, inline_sources
from jitload.request.torch_operators import has_stable_interface
from jitload.settings import read_flag
from jitload.toolchain.arch import NATIVE_HINT

__all__ = ["install", "load", "load_inline"]

_log = logging.getLogger(__name__)
_TORCH_MODULE = "torch.utils.cpp_extension"
_originals: dict[str, Callable[..., Any]] = {}  # torch's own functions, while this module's functions replace them
_installations: set[object] = set()
_installing = threading.RLock()
_WITHOUT_CUDA = (
    "torch's own headers cannot build it either, because this torch is built for the CPU, without the headers and "
    "libraries of CUDA. Install a torch for CUDA, or leave these names out."
)


def load_inline(
    name: str,
    cpp_sources: Texts | None = None,
    cuda_sources: Texts | None = None,
    sycl_sources: Texts | None = None,
    functions: Functions | None = None,
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Paths | None = None,
    build_directory: PathLike | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    with_pytorch_error_handling: bool = True,
    keep_intermediates: bool = True,
    use_pch: bool = False,
    no_implicit_headers: bool = False,
) -> Any:
    """Compile C++ and CUDA sources that use torch's C++ interface, and return a module of their functions.

    The arguments are those of `torch.utils.cpp_extension.load_inline`.

    Raises:
        CompileError: A source has an error. The message contains the compiler's output, whose line numbers are those of
            the source.

    Example:
        >>> source = "torch::Tensor twice(torch::Tensor x) { return x * 2; }"
        >>> load_inline("twice", source, functions=["twice"]).twice(x)
    """
    arguments = dict(locals())
    if sycl_sources:
        return _build_with_torch("load_inline", arguments, "sycl_sources")
    # torch allows blank sources, too.
    cpp, cuda = (
        [text for text in read_texts(arguments[argument], argument) if text.strip()] or None
        for argument in ("cpp_sources", "cuda_sources")
    )
    sources = inline_sources(name, cuda, cpp)
    torch = TorchText(has_implicit_headers=not no_implicit_headers, wraps_errors=with_pytorch_error_handling)
    return _load("load_inline", arguments, Call(name, sources, "module", functions=functions, torch=torch))


def load(
    name: str,
    sources: Paths,
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Paths | None = None,
    build_directory: PathLike | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    is_standalone: bool = False,
    keep_intermediates: bool = True,
) -> Any:
    """Compile C++ and CUDA files that use torch's C++ interface, and return a module of their functions.

    The arguments are those of `torch.utils.cpp_extension.load`.

    Raises:
        CompileError: A file has an error. The message contains the compiler's output.
    """
    arguments = dict(locals())
    if is_standalone:
        return _build_with_torch("load", arguments, "is_standalone=True")
    return _load("load", arguments, Call(name, file_sources(sources), "module", torch=TorchText()))


def _load(function: str, arguments: Mapping[str, Any], call: Call) -> Any:
    if not has_stable_interface():
        return _build_with_torch(function, arguments, "the installed torch lacks the C interface of torch 2.10")
    from jitload.loader.module import torch_module

    try:
        request = make_request(call._replace(options=read_options(*map(arguments.get, OPTION_LISTS))))
    except ToolchainError as error:
        if NATIVE_HINT not in error.args:
            raise
        # The message must not recommend `arch=`, which torch's functions do not have.
        hint = "Set JITLOAD_ARCH=sm_90a, or pass extra_cuda_cflags=['-arch=sm_90a']."
        raise ToolchainError(*(hint if part == NATIVE_HINT else part for part in error.args)) from None
    try:
        module = load_request(request, verbose=bool(arguments["verbose"]))
        # A library that is no Python module has registered its operators when it was loaded.
        return torch_module(module) if arguments["is_python_module"] else str(module.__dict__["_jitload_origin"])
    except CompileError as error:
        texts = [text for _, text in (*call.sources.host, *call.sources.cuda)]
        missing = ", ".join(error.missing or missing_names(error.log, texts))
        if not missing:
            raise
        texts = [text for _, text in call.sources.host if re.search(r"/cuda/|\b(?:at|c10)::cuda\b", text)]
        if (texts or call.sources.cuda) and importlib.import_module("torch").version.cuda is None:
            error.hint = f"jitload's headers for torch lack {missing}. {_WITHOUT_CUDA}"
            raise
    # Called after the `except` block, so that an error from torch does not show the first error as its context.
    return _build_with_torch(function, arguments, f"missing: {missing}")


def _build_with_torch(function: str, arguments: Mapping[str, Any], reason: str) -> Any:
    """Build the sources with torch's own function and torch's headers."""
    import torch.utils.cpp_extension

    original = _originals.get(function) or getattr(torch.utils.cpp_extension, function)
    _log.warning("torch builds %r with its own headers, which takes about a minute (%s)", arguments["name"], reason)
    parameters = inspect.signature(globals()[function]).parameters
    # Arguments with default values are left out, as this release of torch may not know them. torch modifies lists.
    given = {key: value for key, value in arguments.items() if value != parameters[key].default}
    return original(**{key: list(value) if isinstance(value, list | tuple) else value for key, value in given.items()})


# ---- in place of torch's functions ---------------------------------------------------------------------------------


def install() -> ExitStack:
    """Replace `load_inline` and `load` of `torch.utils.cpp_extension` with the functions of this module.

    Call `install` before the program imports these two functions. torch itself may be imported before or later. The
    result is a context manager, whose exit restores torch's functions. After several calls, only the last exit does so.

    Example:
        >>> with jitload.cpp_extension.install():
        ...     runpy.run_path("program.py")
    """
    installation = ExitStack()
    installation.callback(_uninstall, installation)
    with _installing:
        _installations.add(installation)
        if _FINDER not in sys.meta_path:
            sys.meta_path.insert(0, _FINDER)
    if _TORCH_MODULE in sys.modules:
        # `import_module` waits if another thread is still importing the module.
        _replace_functions(importlib.import_module(_TORCH_MODULE))
    return installation


def install_if_wanted() -> None:
    """Replace torch's functions with jitload's if `JITLOAD_TORCH` is on.

    `jitload_torch.pth` calls this when Python starts.
    """
    if read_flag("JITLOAD_TORCH", os.environ.get("JITLOAD_TORCH", "")):
        install()


def _uninstall(installation: object) -> None:
    """Restore torch's functions at the exit of the last installation."""
    with _installing:
        _installations.discard(installation)
        if _installations or _FINDER not in sys.meta_path:
            return
        sys.meta_path.remove(_FINDER)
        for name, original in _originals.items():
            setattr(sys.modules[_TORCH_MODULE], name, original)
        _originals.clear()


def _replace_functions(module: ModuleType) -> None:
    with _installing:
        for name, function in (("load_inline", load_inline), ("load", load)):
            original = getattr(module, name)
            if _installations and original is not function:
                _originals[name] = original
                setattr(module, name, function)


class _Finder(importlib.abc.MetaPathFinder):
    """An import hook that replaces torch's functions when their module is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, *_: object) -> Any:
        if name != _TORCH_MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _replace_functions(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_FINDER = _Finder()


def main() -> None:
    """Run a program with these functions in place of torch's: `python -m jitload.cpp_extension program.py …`."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m jitload.cpp_extension program.py [argument …]")
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).absolute().parent)
    os.environ["JITLOAD_TORCH"] = "1"  # so that child processes of the program use jitload, too
    # `python -m` runs this file as `__main__`, which is not the copy of the module that other code imports.
    module = importlib.import_module("jitload.cpp_extension")
    with module.install():
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
