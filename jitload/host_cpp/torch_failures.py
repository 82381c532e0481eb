"""Remembers in the cache which texts for torch the light headers cannot build, so that only one process tries.

`jitload.cpp_extension` has torch build such a text. The record is a file beside the tools' fingerprints, named after
the key of the library, which covers the text, the options and the versions of the compilers and of jitload.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from jitload.cache.store import Work
from jitload.errors import CompileError, Diagnostic
from jitload.request.request import Request
from jitload.request.torch_text import included_names, light_header_dir, missing_names
from jitload.toolchain.host import load_json, save_json


def find_failure(work: Work) -> CompileError | None:
    """Return the error that this build ended with before, if it is known."""
    if work.settings.mode == "rebuild":
        return None
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        facts = load_json(_record_path(work))
        return CompileError(
            stage=facts["stage"],
            name=facts["name"],
            log=facts["log"],
            diagnostics=tuple(Diagnostic(*values) for values in facts["diagnostics"]),
            command=tuple(facts["command"]),
            hint=facts["hint"],
        )
    return None


def remember_failure(work: Work, request: Request, error: CompileError) -> None:
    """Record an error that names what the light headers lack, unless a header of the user's may be the reason."""
    assert request.host is not None
    texts = [text for unit in request.host.units for _, text in unit.pieces]
    if not missing_names(error.log, texts) or any(_headers_of_user(request)):
        return
    facts = {name: getattr(error, name) for name in ("stage", "name", "log", "diagnostics", "command", "hint")}
    save_json(_record_path(work), facts)


def _headers_of_user(request: Request) -> Iterator[str]:
    """Yield the included headers that the key does not cover: files in the user's directories, and computed names."""
    assert request.host is not None
    dirs = [Path(path) for path in request.include_dirs if Path(path) != light_header_dir()]
    for unit in request.host.units:
        for _, text in unit.pieces:
            yield from (
                name or "a macro"
                for name in included_names(text)
                if not name or any((path / name).is_file() for path in dirs)
            )


def _record_path(work: Work) -> Path:
    return work.cache_dir / ".tools" / f"{work.key.digest[:32]}.lacking"
