"""Finds the kind of `cuda_sources`: kernels, C++ for the host, or kernels with C++ that launches them by `<<<…>>>`.

The kind decides which compiler reads the text, so it is determined before the rest of a call is read. If a text has
both kernels and host code, a call may ask for the kernels alone. The kind of a text with nothing but kernels is found
without the lexer, so that a cache hit stays fast.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jitload.errors import JitLoadError, LaunchSpecError
from jitload.request.arguments import Call, Functions, TorchText, split_includes
from jitload.request.launch import LAUNCH_ATTRIBUTES, Launch
from jitload.request.sources import Sources

if TYPE_CHECKING:
    from jitload.cpptext.source_kind import SourceKind
    from jitload.request.request import HostSource, Request

_TORCH_MARKS = ("torch", "at::", "PYBIND11_MODULE")  # a text without any of them is not for torch
_HOST_MARKERS = ("TVM_FFI_", "tvm::", "tvm/ffi/")
# Patterns are compiled at their first use, because a cache hit imports this module.
_TORCH_INCLUDE = r'(?m)^[ \t]*#[ \t]*include[ \t]*[<"](?:torch|ATen|c10|pybind11)/'
_TORCH_NAME = r"\b(?:torch|at)\s*::\s*\w|\bPYBIND11_MODULE\b"


def with_light_torch(call: Call) -> Call:
    """Return the call. If its texts use torch's C++ interface, add jitload's light headers in place of torch's own."""
    sources = call.sources
    if call.torch is None:
        marks = [mark for _, text in (*sources.cuda, *sources.host) for mark in _TORCH_MARKS if mark in text]
        is_open = call.kind is None and call.makes in ("module", "library")
        if not (marks and is_open and not _has_launches(call.functions) and is_torch_text(sources, call.functions)):
            return call

    from jitload.request.torch_text import torch_sources

    torch = call.torch or TorchText()
    sources, options = torch_sources(call.name, sources, call.functions, call.options, torch)
    kind: SourceKind = "mixed" if sources.cuda else "host"
    return call._replace(sources=sources, options=options, functions=None, kind=kind, torch=torch)


def is_torch_text(sources: Sources, functions: Functions | None = None) -> bool:
    """Return whether texts use torch's C++ interface. Return False if `functions=` names only kernels.

    In C++ sources, an `#include` of torch's headers is enough. CUDA sources have to use torch's names.
    """
    names = [functions] if isinstance(functions, str) else list(functions or ())
    cuda_texts = tuple(text for _, text in sources.cuda)
    if names and all(names_kernel(str(name), cuda_texts) for name in names):
        return False
    if any(re.search(_TORCH_INCLUDE, text) for _, text in sources.host):
        return True
    texts = [text for _, text in (*sources.cuda, *sources.host) if re.search(_TORCH_NAME, text)]
    if not texts:
        return False
    from jitload.cpptext.lexer import strip_comments

    return any(re.search(_TORCH_NAME, strip_comments(text)) for text in texts)


def find_kind(call: Call) -> SourceKind:
    """Return what `cuda_sources` contains: `"device"` (kernels), `"host"` (C++ for the host), or `"mixed"` (both).

    The call's `kind=` takes precedence over the text.

    Raises:
        JitLoadError: `kind=` is unknown.
    """
    sources, options = call.sources, call.options.cuda
    texts = tuple(text for _, text in sources.cuda)
    if call.kind not in ("device", "host", "mixed", None):
        raise JitLoadError(f"kind must be 'device', 'host', 'mixed' or None, got {call.kind!r}")
    if not sources.cuda:
        return "host"
    if call.kind is not None:
        return call.kind
    has_host_code = bool(sources.host or sources.objects) or _names_host_functions(call, texts)
    kind = _kind_of_texts(texts, options, has_cubins=bool(sources.cubins), has_host_code=has_host_code)
    if kind == "device" and _names_functions_beside_kernels(call, texts):
        kind = _kind_of_texts(texts, options, has_cubins=bool(sources.cubins), has_host_code=True)
        kind = "host" if kind == "host" else "mixed"
    if kind == "host" and not sources.cubins and any("include" in text for text in texts):
        from jitload.cpptext.source_kind import headers_need_nvcc

        return "mixed" if headers_need_nvcc(texts, _include_dirs(call), options) else "host"
    return kind


def looks_like_kernels(texts: Sequence[str]) -> bool:
    """Return whether texts contain `__global__` but no sign of host code, such as `<<<` or `TVM_FFI_`."""
    markers = (*_HOST_MARKERS, "<<<", "cudaLaunch", "cub/device/", "thrust/")
    return any("__global__" in text for text in texts) and not any(m in text for text in texts for m in markers)


@functools.lru_cache(maxsize=64)
def _kind_of_texts(
    texts: tuple[str, ...], options: tuple[str, ...], *, has_cubins: bool, has_host_code: bool
) -> SourceKind:
    if not has_cubins and looks_like_kernels(texts):
        return "device"

    from jitload.cpptext.source_kind import classify

    kind = classify(texts, has_embed_cubin=has_cubins, options=options, for_nvrtc=not has_host_code)
    if kind != "host":
        return kind
    is_host_like = has_cubins or any(marker in text for text in texts for marker in _HOST_MARKERS)
    return "host" if is_host_like or has_host_code else "device"  # the kernels may be in a header


def _has_launches(functions: Functions | None) -> bool:
    """Return whether `functions=` maps any name to a `Launch`."""
    return isinstance(functions, Mapping) and any(isinstance(value, Launch) for value in functions.values())


def _names_host_functions(call: Call, texts: tuple[str, ...]) -> bool:
    """Return whether `functions=` seems to name host functions and not kernels.

    Included files may contain kernels. A text with `#include` must therefore define all named functions itself, as host
    functions.
    """
    if not call.exports or _has_launches(call.functions):
        return False
    in_options = any("__global__" in option for option in call.options.cuda)
    if not any("#include" in text for text in texts) and not in_options:
        return True
    if any("__global__" in text for text in texts):
        return False
    from jitload.cpptext.host_functions import defines_host_functions

    return defines_host_functions(texts, tuple(name for name, _ in call.exports))


def _include_dirs(call: Call) -> list[Path]:
    options = call.options
    cuda_dirs = split_includes(options.cuda)[1]
    dirs = (*options.include_dirs, *call.sources.directories, *cuda_dirs, *options.host_dirs)
    return [path.absolute() for path in dirs]


def _names_functions_beside_kernels(call: Call, texts: tuple[str, ...]) -> bool:
    """Return whether `functions=` names any host function. If the texts have no kernels, also search their headers."""
    if not call.exports:
        return False
    launches = ((launch.kernel or name, launch) for name, launch in call.exports)
    names = {unqualified(name) for name, launch in launches if launch.grid is None and launch.block is None}
    others = [name for name in names if not names_kernel(name, texts)]
    if not others:
        return False
    if any("#include" in text for text in texts) and not any("__global__" in text for text in texts):
        from jitload.cpptext.source_kind import user_headers

        texts = (*texts, *user_headers(texts, _include_dirs(call)))

    from jitload.cpptext.host_functions import defines_host_functions

    return any(defines_host_functions(texts, (name,)) for name in others)


@functools.lru_cache(maxsize=1024)
def names_kernel(name: str, texts: tuple[str, ...]) -> bool:
    """Return whether a text contains `__global__`, followed by this name and `(`."""
    pattern = re.compile(rf"__global__[^;{{}}]*\b{re.escape(name)}\s*\(")
    return any(pattern.search(text) for text in texts)


def unqualified(name: str) -> str:
    """Return the last part of a function's name, without template arguments and parameter types."""
    return re.split(r"[<(]", name)[0].rpartition("::")[2].strip()


# ---- functions of hand-written C++ -----------------------------------------------------------------------------------

# Fields of a Launch that only kernels have.
_KERNEL_FIELDS = ("grid", "block", "shared_bytes", *LAUNCH_ATTRIBUTES, "signature", "tma", "tune", "bounds")


def check_host_functions(call: Call, host: HostSource) -> None:
    """Raise an error if hand-written C++ cannot provide the functions in `functions=`.

    A `Launch` may not have fields for kernels, and there must be a source.
    """
    exports = call.exports or ()
    for name, value in call.functions.items() if isinstance(call.functions, Mapping) else ():
        fields = [field for field in _KERNEL_FIELDS if getattr(value, field, None) not in (None, 0, False, ())]
        if isinstance(value, list | tuple) or fields:
            problem = f"is for kernels, but {name!r} is a host function, which chooses its launches itself"
            field = f"functions[{name!r}]" if not fields else f"Launch.{fields[0]}"
            hint = "Pass its name alone or with a docstring, or a Launch without grid and block."
            raise LaunchSpecError(problem, kernel=name, field=field, hint=hint)
    if exports and not host.units:
        raise LaunchSpecError("names functions, but there is no source that could define them", field="functions")


# ---- sources with kernels and host code ------------------------------------------------------------------------------

# Options for a text whose host code is left out. The first option is needed because types and constants that kernels
# share with host code have no `__device__`. Member functions for the host are left with empty bodies, so the second
# option turns off warning 940, which is about missing return statements.
DEFAULT_DEVICE = ("-default-device", "--diag-suppress=940")


def leaves_host_code_out(call: Call, kind: SourceKind) -> bool:
    """Return whether to leave out the host code in a call's source of this kind, because kernels alone are wanted."""
    texts = tuple(text for _, text in call.sources.cuda)
    is_explicit = call.kind is not None or call.makes == "cubin"
    if kind == "mixed":
        return not is_explicit and _asks_for_kernels(call, texts)
    if kind == "host" or call.sources.host or call.sources.objects:
        return False
    if _is_program(texts, call.options.cuda):
        return True
    # g++ reads what `#ifndef __CUDACC_RTC__` hides from NVRTC, so kernels for the CPU lose this host code, too.
    is_for_cpu = call.names_cpu and any("<<<" in text for text in texts)
    if not (is_explicit or is_for_cpu) or looks_like_kernels(texts):
        return False

    from jitload.cpptext.source_kind import classify

    return classify(texts, has_embed_cubin=False, options=call.options.cuda, for_nvrtc=not is_for_cpu) == "mixed"


def kernels_alone(request: Request, *, only: str = "") -> Request:
    """Return a request for kernels alone without its host code. A build calls this, because it reads the headers.

    If `only` names a kernel, the request is without the device code that this kernel does not need, too.
    """
    if not request.leaves_host_code_out and not only:
        return request

    from jitload.cpptext.host_functions import without_host_code
    from jitload.cpptext.source_kind import user_headers

    texts = tuple(text for _, text in request.pieces)
    # Kernels in headers, names of kernels and macros in options may mention types of the texts.
    headers = user_headers(texts, [Path(path) for path in request.include_dirs])
    launches = [launch for _, launch in request.functions or ()]
    mentioned = " ".join((only, *(f"{one.kernel} {one.signature} {one.tune!r}" for one in launches), *request.options))
    labels = [label for label, _ in request.pieces]
    pieces = tuple(
        zip(labels, without_host_code((*texts, *headers), mentioned, only_mentioned=bool(only)), strict=False)
    )
    return request._replace(pieces=pieces, leaves_host_code_out=False)


@functools.lru_cache(maxsize=64)  # cached, because each call of load_inline needs the answer
def _is_program(texts: tuple[str, ...], options: tuple[str, ...]) -> bool:
    """Return whether a text has a `main()` after preprocessing for NVRTC."""
    if not any("main" in text for text in texts):
        return False

    from jitload.cpptext.host_functions import has_main
    from jitload.cpptext.lexer import tokenize
    from jitload.cpptext.preprocessor import NVRTC_MACROS, Macros, live_tokens

    code = [token for text in texts for token in tokenize(text)]
    live = live_tokens(code, Macros(NVRTC_MACROS, options))
    return any(token.text == "main" for token in live) and has_main(texts)


def _asks_for_kernels(call: Call, texts: tuple[str, ...]) -> bool:
    """Return whether a call with kernels and host code in one text asks for the kernels alone.

    A call does so if `functions=` names kernels, or if `functions=` names nothing and the text is a program.
    """
    if call.sources.host or call.sources.objects or call.sources.cubins:
        return False

    from jitload.cpptext.declarations import find_candidates
    from jitload.cpptext.host_functions import find_host_functions, has_main

    if not call.exports:
        return not any("TVM_FFI_" in text for text in texts) and has_main(texts)
    kernel_names = {unqualified(candidate.name) for candidate in find_candidates(texts)}
    host_names = {unqualified(f.candidate.name) for text in texts for f in find_host_functions(text)}
    targets = {unqualified(launch.kernel or name) for name, launch in call.exports}
    if not targets <= kernel_names | host_names and any("#include" in text for text in texts):
        from jitload.cpptext.source_kind import user_headers

        headers = tuple(user_headers(texts, _include_dirs(call)))
        kernel_names |= {unqualified(candidate.name) for candidate in find_candidates(headers)}
    kernels: list[str] = []
    others: list[str] = []
    for name, launch in call.exports:
        target = unqualified(launch.kernel or name)
        is_kernel = target in kernel_names or launch.grid is not None or launch.block is not None
        (kernels if is_kernel and target not in host_names else others).append(name)
    if kernels and others:
        raise JitLoadError(
            f"module {call.name!r}: {kernels[0]!r} is a kernel and {others[0]!r} is not. Load the kernels and the "
            "host functions in two calls, each with its own names."
        )
    return bool(kernels)
