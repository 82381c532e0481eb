"""Compiles device code again without host functions, if NVRTC has rejected them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from jitload.cpptext.source_kind import UserHeader, read_user_headers, user_headers
from jitload.cuda.nvrtc import has_host_function, missing_function_hint
from jitload.errors import CompileError, LaunchSpecError
from jitload.request.kind import DEFAULT_DEVICE

if TYPE_CHECKING:
    from jitload.cuda.kernels import DeviceSource

_Result = TypeVar("_Result")


def compile_kernels_alone(source: DeviceSource, run: Callable[[DeviceSource], _Result]) -> _Result:
    """Return `run(source)`. If NVRTC rejects a host function, run again without the host code.

    If this fails, too, raise the first error: for example, kernels call a function that lacks `__device__`. Also raise
    it if different headers have the same name in `#include`, because NVRTC finds headers in memory by this name.
    """
    try:
        return run(source)
    except CompileError as error:
        if not has_host_function(error.log) or _misspells(source, error.log):
            raise
        failure = error
    headers = tuple(read_user_headers(source.texts, source.include_dirs))
    if len({header.name for header in headers}) < len(headers):
        raise failure
    try:
        return run(_without_host_code(source, headers))
    except (CompileError, LaunchSpecError):
        raise failure from None


def _misspells(source: DeviceSource, log: str) -> bool:
    """Return whether an exported name is in no text, because it may misspell the name of a host function."""
    texts = (*source.piece_texts, *user_headers(source.texts, source.include_dirs))
    return missing_function_hint(log, source.exports, texts) != ""


def _without_host_code(source: DeviceSource, headers: Sequence[UserHeader]) -> DeviceSource:
    """Return the source without host code in its text and in the user's headers, which NVRTC gets in memory."""
    from jitload.cpptext.host_functions import without_host_code

    texts = without_host_code((*source.piece_texts, *(header.text for header in headers)))
    labels = (label for label, _ in source.pieces)
    cut_headers = zip(headers, texts[len(source.pieces) :], strict=True)
    return replace(
        source,
        pieces=tuple(zip(labels, texts[: len(source.pieces)], strict=True)),
        headers=tuple((header.name, f'#line 1 "{header.path}"\n{text}') for header, text in cut_headers),
        options=(*source.options, *DEFAULT_DEVICE),
    )
