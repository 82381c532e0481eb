"""Reads the requests of `prebuild`, and builds them.

Other processes must be able to import the Triton kernel of a request, because Triton reads the kernel's source from its
file.
"""

from __future__ import annotations

import inspect
import operator
import pickle
import pickletools
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from jitload.errors import CacheError, JitLoadError
from jitload.request.tune import read_tuned
from jitload.triton.kernel import import_name

if TYPE_CHECKING:
    from jitload.cache.entry import Entry
    from jitload.request.request import Request

_MAIN = "__main__"  # in another process, this name means another module
_NAME = re.compile(r"([\w-]+(?:\.[\w-]+)*):([^\W\d]\w*(?:\.[^\W\d]\w*)*)")


def is_triton(request: object) -> bool:
    """Return whether a request has the keywords of `load_triton`."""
    return isinstance(request, Mapping) and "kernel" in request


def portable_request(request: Any) -> Any:
    """Return a request for other processes.

    A Triton kernel that can be imported is replaced by its `module:name`, and a file of measurements by its contents.
    """
    if is_triton(request) and (name := import_name(request["kernel"])):
        request = {**request, "kernel": name}
    with suppress(JitLoadError):  # the build of the request fails with this error
        if isinstance(request, Mapping) and (file := read_tuned(request.get("tuned"))):
            request = {**request, "tuned": file._asdict()}
    return request


def needs_this_process(request: Any) -> bool:
    """Return whether only this process can build a request. An example is a Triton kernel from a notebook."""
    if not is_triton(request):
        return False
    try:
        data = pickle.dumps(request)
    except Exception:  # noqa: BLE001  whatever a user's object raises
        return True
    texts = (argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str))
    return any(text.partition(":")[0] == _MAIN for text in texts)


def import_object(path: str, label: str) -> Any:
    """Return the object named `module:name`. Error messages begin with the label."""
    match = _NAME.fullmatch(path)
    if match is None:
        raise JitLoadError(f"{label} must be module:name, such as 'my_package.kernels:add'")
    module, name = match.groups()
    imported = import_user_module(module, label)
    try:
        return operator.attrgetter(name)(imported)
    except AttributeError:
        raise JitLoadError(f"{label}: the module {module} has no {name!r}") from None


def import_user_module(module: str, label: str) -> Any:
    """Import and return one of the user's modules. Error messages begin with the label."""
    try:
        return import_module(module)
    except (Exception, SystemExit) as error:
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        raise JitLoadError(
            f"{label}: the module {module} cannot be imported ({problem}). Its directory must be on sys.path "
            "(PYTHONPATH) on each machine that builds the request."
        ) from error


# ---- building a request ----------------------------------------------------------------------------------------


def build_request(fields: Any) -> Entry:
    """Return the cache entry of the library for a request. Build the library if it is not in the cache.

    Raises:
        JitLoadError: `fields` is not a valid request, or the library cannot be built or kept in the cache.
    """
    from jitload.building.stages import shown_log
    from jitload.cache.entry import find_cache_dir, is_in_private_cache
    from jitload.pipeline import find_or_build
    from jitload.settings import read_settings

    request = read_request(fields)
    with shown_log if fields.get("verbose") else nullcontext():
        entry = find_or_build(request)
    cache_dir = find_cache_dir(read_settings())
    if is_in_private_cache(entry.dir):  # this request or an equal one before it was built there
        raise CacheError(f"the cache {cache_dir} cannot be written. Set JITLOAD_CACHE_DIR to another directory.")
    return entry


def read_request(fields: Any, makes: Literal["library", "module"] = "library") -> Request:
    """Return the request for a mapping of keywords."""
    if not isinstance(fields, Mapping):
        raise JitLoadError(f"a request must be a mapping of keywords of build_inline, got {type(fields).__name__}")
    fields = {name: value for name, value in fields.items() if name != "tune"}  # the jobs of `jitload tune`
    if outputs := {"output", "build_directory"} & fields.keys():
        raise JitLoadError(f"prebuild() only fills the cache: leave {min(outputs)}= out, or call build_inline()")
    if is_triton(fields):
        return _triton_request(fields)
    if "call" not in fields:
        return _library_request(fields, makes)
    from jitload.request.recording import decode_call
    from jitload.request.request import make_request

    return make_request(decode_call(fields))


def _library_request(fields: Mapping[str, Any], makes: Literal["library", "module"]) -> Request:
    """Return the request for `build_inline`, or if `fields` names files, for `build`."""
    from jitload.api import build, build_inline
    from jitload.request.arguments import OPTION_LISTS, Call, check_flags, read_instrumentation, read_options
    from jitload.request.request import make_request
    from jitload.request.sources import file_sources, inline_sources

    has_files = any(fields.get(name) for name in ("sources", "cuda_files", "cpp_files"))
    given = _with_defaults(build if has_files else build_inline, fields)
    check_flags(**{name: given[name] for name in ("debug", "gpu_check", "isolate", "verbose")})
    if has_files:
        files = (given["sources"], given["cuda_files"], given["cpp_files"])
        sources = file_sources(*files, embed_cubin=given["embed_cubin"])
    else:
        sources = inline_sources(given["name"], given["cuda_sources"], given["cpp_sources"], given["embed_cubin"])
    call = Call(
        given["name"],
        sources,
        makes,
        options=read_options(*(given[name] for name in (*OPTION_LISTS, "backend")), fast_compile=given["fast_compile"]),
        instrumentation=read_instrumentation(given["sanitize"], debug=given["debug"]),
        tuned=read_tuned(given["tuned"]),
        **{name: given[name] for name in ("functions", "arch", "kind", "gpu_check", "isolate")},
    )
    return make_request(call)


def _with_defaults(function: Callable[..., Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for a call of a function: those in `fields`, and default values for the others."""
    try:
        bound = inspect.signature(function).bind(**fields)
    except TypeError as error:
        raise TypeError(f"request {str(fields.get('name', fields))[:80]!r}: {function.__name__}() {error}") from None
    bound.apply_defaults()
    return bound.arguments


def _triton_request(fields: Mapping[str, Any]) -> Request:
    """Return the request for `load_triton`."""
    from jitload.cache.entry import find_cache_dir
    from jitload.settings import read_settings
    from jitload.triton.kernel import CompileSpec
    from jitload.triton.request import make_triton_request

    options = {word: value for word, value in fields.items() if word != "verbose"}
    name, kernel = options.pop("name", None), options.pop("kernel")
    recorded_archs = options.pop("archs", None) or "native"
    arch, grid = options.pop("arch", None) or "native", options.pop("grid", None)
    args, tuned, nearest = options.pop("args", None) or (), options.pop("tuned", None), options.pop("nearest", None)
    if name is None:
        raise JitLoadError(f"the request for {kernel!r} has no name: add the key 'name'")
    request = make_triton_request(
        name,
        import_object(kernel, f"kernel={kernel!r}") if isinstance(kernel, str) else kernel,
        CompileSpec.of(args, **options),
        arch=recorded_archs if arch == "native" else arch,
        grid=grid,
        tuned=tuned,
        nearest=nearest,
    )
    cache_dir = find_cache_dir(read_settings())
    if find_cache_dir(request.settings) != cache_dir:
        raise CacheError(
            f"{name!r} cannot be cached, because its key would be incomplete: a source cannot be read, or an object of "
            "yours is compiled in"
        )
    return request
