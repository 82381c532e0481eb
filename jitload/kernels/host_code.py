"""Compiles device code again without host code, if NVRTC or g++ has rejected the host code."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from jitload.cpptext.source_kind import with_header_names
from jitload.cuda.messages import has_host_function, missing_function_hint
from jitload.errors import CompileError, LaunchSpecError, ToolchainError
from jitload.kernels.source import DeviceSource, with_default_device

_CONDITION = r"\s*#\s*(?:el)?if"

_Result = TypeVar("_Result")


def compile_kernels_alone(source: DeviceSource, run: Callable[[DeviceSource], _Result]) -> _Result:
    """Return `run(source)`. If the compiler rejects host code, run again without it.

    If this fails, too, raise the first error: for example, kernels call a function that lacks `__device__`. But if the
    first run reported all errors of the second run, or did not get that far, raise the second error, which is about
    device code alone. Also raise the second error if no kernel fits a `Launch`, or if kernels need a GPU.
    """
    try:
        return run(source)
    except CompileError as error:
        if _misspells(source, error.log):
            raise
        failure = error
    if _is_in_headers(failure, source) and (options := with_default_device(source.options)) != source.compiler_options:
        with suppress(CompileError, LaunchSpecError):
            return run(source._replace(options=options))
    kernels_alone = _without_host_code(source)
    if not _rejects_host_code(failure, source, kernels_alone):
        raise failure
    try:
        return run(_with_unique_names(kernels_alone))
    except ToolchainError:
        raise failure from None
    except CompileError as error:
        needs_gpu = any(d.message.startswith("GPU only") for d in error.diagnostics)
        raise (error if needs_gpu or _was_reported(error, failure) else failure) from None


def _is_in_headers(error: CompileError, source: DeviceSource) -> bool:
    """Return whether NVRTC rejected host functions, and the first one is in a header, as in CUTLASS.

    Most of these are small functions that lack `__device__`, and that kernels may call.
    """
    labels = {label for label, _ in source.pieces}
    first = next((d for d in error.diagnostics if "error" in d.severity), None)
    return has_host_function(error.log) and first is not None and first.file not in labels


def _misspells(source: DeviceSource, log: str) -> bool:
    """Return whether an exported name is in no text, because it may misspell the name of a host function."""
    texts = (*source.piece_texts, *source.reading.header_texts)
    return missing_function_hint(log, source.exports, texts) != ""


def _without_host_code(source: DeviceSource) -> DeviceSource:
    """Return the source without host code in its text and in the user's headers."""
    from jitload.cpptext.host_functions import without_host_code

    headers = source.reading.headers
    mentioned = " ".join((*source.kernels, *(signature for _, signature in source.signatures)))
    own_texts = (*source.piece_texts, *source.option_lines)
    texts = without_host_code((*own_texts, *(header.text for header in headers)), mentioned)
    labels = (label for label, _ in source.pieces)
    cut_headers = zip(headers, texts[len(own_texts) :], strict=True)
    return source._replace(
        pieces=tuple(zip(labels, texts[: len(source.pieces)], strict=True)),
        headers=tuple(header._replace(text=text) for header, text in cut_headers),
        options=with_default_device(source.options),
    )


def _with_unique_names(source: DeviceSource) -> DeviceSource:
    """Return the source with a name for each header, by which all `#include` lines include it.

    The compiler finds headers without host code by their names. The user's file may have several names, and two files
    may have the same.
    """
    names: dict[str, str] = {}  # names of headers, and the paths of their files
    for number, header in enumerate(source.headers):
        is_taken = os.path.normpath(header.name) in map(os.path.normpath, names)
        names[f"{number}/{header.path.name}" if is_taken else header.name] = os.path.realpath(header.path)
    by_path = {path: name for name, path in names.items()}
    rename = functools.partial(with_header_names, include_dirs=source.include_dirs, names=by_path)
    return source._replace(
        pieces=tuple((label, rename(text, None)) for label, text in source.pieces),
        headers=tuple(
            header._replace(name=name, text=rename(header.text, header.path.parent))
            for header, name in zip(source.headers, names, strict=True)
        ),
    )


def _rejects_host_code(error: CompileError, source: DeviceSource, kernels_alone: DeviceSource) -> bool:
    """Return whether an error is in host code, or in a condition such as `#ifdef`, which may be about host code."""
    if has_host_function(error.log):
        return True
    if all("static assertion failed" in d.message for d in error.diagnostics if "error" in d.severity):
        return False  # host code that NVRTC does not know has other errors, too
    errors = {*_error_lines(error)}
    texts = [*source.pieces, *((str(h.path), h.path.read_text("utf-8", "replace")) for h in kernels_alone.headers)]
    cut_texts = [*kernels_alone.piece_texts, *(header.text for header in kernels_alone.headers)]
    for (file, text), cut_text in zip(texts, cut_texts, strict=True):
        lines = enumerate(zip(text.split("\n"), cut_text.split("\n"), strict=True), 1)
        changed = (n for n, (line, cut) in lines if line.rstrip() != cut.rstrip() or re.match(_CONDITION, cut))
        if not errors.isdisjoint((os.path.realpath(file), number) for number in changed):
            return True
    return False


def _was_reported(error: CompileError, failure: CompileError) -> bool:
    """Return whether an earlier failure reported all lines of an error, or ended before it read them."""
    lines = {*_error_lines(error)}
    has_stopped = any(d.severity in ("fatal error", "catastrophic error") for d in failure.diagnostics)
    return has_stopped or (bool(lines) and lines.issubset(_error_lines(failure)))


def _error_lines(error: CompileError) -> Iterator[tuple[str, int]]:
    return ((os.path.realpath(d.file), d.line) for d in error.diagnostics if "error" in d.severity)
