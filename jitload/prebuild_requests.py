"""What a request of `prebuild` may be: how one for a Triton kernel travels to another process, and is built there."""

from __future__ import annotations

import pickle
import pickletools
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.machinery import PathFinder
from types import FunctionType
from typing import Any

from jitload.errors import CacheError, JitLoadError

_MAIN = "__main__"  # another process has a main module of its own
_DEEPEST = 16  # of what may be wrapped around a kernel: autotune, heuristics, jit
_NAME = re.compile(r"([\w-]+(?:\.[\w-]+)*):([^\W\d]\w*(?:\.[^\W\d]\w*)*)")
_APART = ("signature", "constexprs", "variants", "config")


def is_triton(request: object) -> bool:
    """Tell whether a request is one for `load_triton`."""
    return isinstance(request, Mapping) and "kernel" in request


def travelling(request: Any) -> Any:
    """Return a request as it goes to another process: a Triton kernel by the name under which it is imported there."""
    if is_triton(request) and (name := _import_name(request["kernel"])):
        return {**request, "kernel": name}
    return request


def must_stay(request: Any) -> bool:
    """Tell whether only this process can build a request, as that for a Triton kernel of a program or a notebook.

    Triton reads a kernel's source where it was written, so that a kernel cannot be sent; it has to be imported.
    """
    if not is_triton(request):
        return False
    if isinstance(request["kernel"], str) and request["kernel"].partition(":")[0] == _MAIN:
        return True
    try:
        data = pickle.dumps(request)
    except Exception:  # noqa: BLE001  whatever a user's object raises
        return True
    return any(argument == _MAIN for _, argument, _ in pickletools.genops(data))


def _import_name(kernel: Any) -> str:
    """Return `module:name` where an import finds this very kernel, else ""."""
    inner = kernel
    for _ in range(_DEEPEST):
        if isinstance(inner, FunctionType) or getattr(inner, "best_config", None) is not None:  # measured here
            break
        inner = getattr(inner, "fn", None)
    if not isinstance(inner, FunctionType) or inner.__module__ == _MAIN:
        return ""
    found: Any = sys.modules.get(inner.__module__)
    for part in inner.__qualname__.split("."):
        found = getattr(found, part, None)
    is_importable = found is kernel and PathFinder.find_spec(inner.__module__.partition(".")[0]) is not None
    return f"{inner.__module__}:{inner.__qualname__}" if is_importable else ""


def import_named(text: str, what: str) -> Any:
    """Return what `module:name` means; `what` begins a message.

    Raises:
        JitLoadError: It is no such text, or there is no such thing.
    """
    found = _NAME.fullmatch(text)
    if found is None:
        raise JitLoadError(f"{what} must be module:name, such as 'my_package.kernels:add'")
    value = import_for(found[1], what)
    for part in found[2].split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise JitLoadError(f"{what}: the module {found[1]} has no {found[2]!r}") from None
    return value


def import_for(module: str, what: str) -> Any:
    """Return a module of the user's.

    Raises:
        JitLoadError: It cannot be imported.
    """
    try:
        return import_module(module)
    except (Exception, SystemExit) as error:
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        raise JitLoadError(
            f"{what}: the module {module} cannot be imported ({problem}). Its directory must be on sys.path "
            "(PYTHONPATH) wherever it is built."
        ) from error


def build_triton(request: Mapping[str, Any]) -> str:
    """Build what `load_triton` would load, and return the library's path.

    Raises:
        JitLoadError: The kernel is none, or no cache can keep its library; and what `load_triton` raises.
    """
    from jitload.serving import build_request
    from jitload.settings import find_cache_dir, read_settings
    from jitload.triton.request import make_triton_request
    from jitload.triton.wanted import Asked

    options: dict[str, Any] = {"num_warps": None, "num_stages": None, **request}
    name, kernel = options.pop("name", None), options.pop("kernel")
    is_verbose = bool(options.pop("verbose", False))
    arch, grid = options.pop("arch", None) or "native", options.pop("grid", None)
    args, apart = options.pop("args", None) or (), {word: options.pop(word, None) for word in _APART}
    wanted = make_triton_request(
        name,
        import_named(kernel, f"kernel={kernel!r}") if isinstance(kernel, str) else kernel,
        Asked(args=args, **apart, options=options),
        arch=arch,
        grid=grid,
    )
    cache_dir = find_cache_dir(read_settings())
    if find_cache_dir(wanted.settings) != cache_dir:
        raise CacheError(
            f"no cache can keep {name!r}: what decides it cannot all be told, since a source cannot be read, or an "
            "object of yours is compiled in"
        )
    return build_request(wanted, None, None, verbose=is_verbose)
