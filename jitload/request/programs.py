"""Sources that contain kernels and host code: which of the two a call asks for."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from jitload.errors import JitLoadError
from jitload.request.arguments import Call, read_functions
from jitload.request.kind import Kind, is_empty, looks_like_kernels, unqualified
from jitload.toolchain.arch import CPU

# Types and constants that kernels share with the host have no `__device__`, and members for the host have no body.
DEFAULT_DEVICE = ("-default-device", "--diag-suppress=940")


def choose_kernels(call: Call, kind: Kind) -> tuple[Call, Kind, bool]:
    """Return the call with its kernels alone, if these are what it asks for, and whether host code was left out.

    Raises:
        JitLoadError: `functions=` names kernels as well as functions of the host.
    """
    texts = tuple(text for _, text in call.sources.cuda)
    targets = (call.arch, *call.arch) if isinstance(call.arch, Sequence) else ()
    if CPU in targets or not _leaves_host_code_out(call, kind, texts):
        return call, kind, False

    from jitload.cpptext.host_functions import without_host_code

    labels = [label for label, _ in call.sources.cuda]
    pieces = tuple(zip(labels, without_host_code(texts), strict=True))
    return call._replace(sources=call.sources._replace(cuda=pieces)), "device", True


def _leaves_host_code_out(call: Call, kind: Kind, texts: tuple[str, ...]) -> bool:
    is_explicit = call.kind is not None or call.makes == "cubin"
    if kind == "mixed":
        return not is_explicit and _asks_for_kernels(call, texts)
    if kind == "host" or call.sources.host or call.sources.objects:
        return False
    if _is_program(texts, call.options.cuda):
        return True
    return is_explicit and not looks_like_kernels(texts) and _is_mixed(call, texts)


@functools.lru_cache(maxsize=64)  # each call of load_inline asks
def _is_program(texts: tuple[str, ...], options: tuple[str, ...]) -> bool:
    """Return whether a text has a `main()` that NVRTC would read."""
    if not any("main" in text for text in texts):
        return False

    from jitload.cpptext.host_functions import has_main
    from jitload.cpptext.lexer import code_tokens
    from jitload.cpptext.preprocessor import NVRTC_MACROS, Macros, live_tokens

    code = [token for text in texts for token in code_tokens(text)]
    live = live_tokens(code, Macros(NVRTC_MACROS, options))
    return any(token.text == "main" for token in live) and has_main(texts)


def _is_mixed(call: Call, texts: tuple[str, ...]) -> bool:
    from jitload.cpptext.source_kind import classify

    return classify(texts, has_embed_cubin=False, options=call.options.cuda, for_nvrtc=True) == "mixed"


def _asks_for_kernels(call: Call, texts: tuple[str, ...]) -> bool:
    """Return whether a call with kernels and host code in one text asks for the kernels."""
    if call.sources.host or call.sources.objects or call.sources.cubins:
        return False

    from jitload.cpptext.declarations import find_candidates
    from jitload.cpptext.host_functions import find_host_functions, has_main

    if call.functions is None or is_empty(call.functions):
        return not any("TVM_FFI_" in text for text in texts) and has_main(texts)
    kernel_names = {unqualified(candidate.name) for candidate in find_candidates(list(texts))}
    host_names = {unqualified(f.candidate.name) for text in texts for f in find_host_functions(text)}
    kernels: list[str] = []
    others: list[str] = []
    for name, launch in read_functions(call.functions) or ():
        target = unqualified(launch.kernel or name)
        is_kernel = target in kernel_names or launch.grid is not None or launch.block is not None
        (kernels if is_kernel and target not in host_names else others).append(name)
    if kernels and others:
        raise JitLoadError(
            f"module {call.name!r}: {kernels[0]!r} is a kernel and {others[0]!r} is not. Load the kernels and the "
            "functions of the host in two calls, each with the names of its own."
        )
    return bool(kernels)
