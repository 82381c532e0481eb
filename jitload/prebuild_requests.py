"""What a request of `prebuild` may be: how one for a Triton kernel reaches another process, and how each is built."""

from __future__ import annotations

import inspect
import pickle
import pickletools
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.machinery import PathFinder
from types import FunctionType
from typing import TYPE_CHECKING, Any

from jitload.errors import CacheError, JitLoadError

if TYPE_CHECKING:
    from jitload.cache.entry import Entry
    from jitload.ninja_runs import Building
    from jitload.request.request import Request

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


# ---- a request that is built -----------------------------------------------------------------------------------


def building_of(fields: Any, *, is_patient: bool = True) -> Building[Entry]:
    """Build what a request asks for, and stop where ninja is to run.

    Raises:
        JitLoadError: The request is none, no cache can keep its library; and what `build_inline`, `build` or
            `load_triton` raises.
        LockHeldError: Somebody else builds it, and `is_patient` is False.
    """
    from jitload.pipeline import building
    from jitload.settings import find_cache_dir, is_in_private_cache, read_settings

    if not isinstance(fields, Mapping):
        raise JitLoadError(f"a request is a mapping of the keywords of build_inline, got {type(fields).__name__}")
    if aside := {"output", "build_directory"} & fields.keys():
        raise JitLoadError(f"prebuild() fills the cache: leave {min(aside)}= to build_inline()")
    request, is_verbose = _triton_request(fields) if is_triton(fields) else _library_request(fields)
    entry = yield from building(request, verbose=is_verbose, is_patient=is_patient)
    cache_dir = find_cache_dir(read_settings())
    if is_in_private_cache(entry.dir):  # of this request, or of an equal one before it
        raise CacheError(f"the cache {cache_dir} cannot be written, so nothing can be kept in it")
    return entry


def _library_request(fields: Mapping[str, Any]) -> tuple[Request, bool]:
    """Return what `build_inline`, or `build` where files are named, would build, and whether it logs what it runs."""
    from jitload.api import build, build_inline
    from jitload.checks import read_checks
    from jitload.request.arguments import file_sources, inline_sources, read_options
    from jitload.request.request import Call, make_request

    are_files = any(fields.get(name) for name in ("sources", "cuda_files", "cpp_files"))
    given = _with_defaults(build if are_files else build_inline, fields)
    name, cubins = given["name"], given["embed_cubin"]
    if are_files:
        sources = file_sources(given["sources"], given["cuda_files"], given["cpp_files"], embed_cubin=cubins)
    else:
        sources = inline_sources(name, given["cuda_sources"], cpp_sources=given["cpp_sources"], embed_cubin=cubins)
    options = read_options(
        cflags=given["extra_cflags"],
        cuda_cflags=given["extra_cuda_cflags"],
        ldflags=given["extra_ldflags"],
        include_paths=given["extra_include_paths"],
    )
    call = Call(
        name=name,
        sources=sources,
        makes="library",
        functions=given["functions"],
        options=options,
        arch=given["arch"],
        backend=given["backend"],
        kind=given["kind"],
        checks=read_checks(given["sanitize"], debug=given["debug"]),
    )
    return make_request(call), given["verbose"]


def _with_defaults(function: Callable[..., Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return all keywords of a public function, as a call with these would have them."""
    try:
        bound = inspect.signature(function).bind(**fields)
    except TypeError as error:
        raise TypeError(f"{function.__name__}() {error}") from None
    bound.apply_defaults()
    return bound.arguments


def _triton_request(fields: Mapping[str, Any]) -> tuple[Request, bool]:
    """Return what `load_triton` would build, and whether it logs what it runs."""
    from jitload.settings import find_cache_dir, read_settings
    from jitload.triton.request import make_triton_request
    from jitload.triton.wanted import Asked

    options: dict[str, Any] = {"num_warps": None, "num_stages": None, **fields}
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
    return wanted, is_verbose
