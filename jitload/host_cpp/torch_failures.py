"""Records in the cache which texts for torch cannot be built with the light headers, so that only one process tries.

The light headers are jitload's replacements of torch's headers. If they do not suffice for a text,
`jitload.cpp_extension` has torch build it. A record is a file in the cache's `.tools` directory. It is named after the
library's key, which covers the text, the options and the versions of the compilers and of jitload.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from jitload.cache.store import Work
from jitload.errors import CompileError, Diagnostic
from jitload.request.request import Request
from jitload.request.torch_text import LIGHT_HEADER_DIR, included_names, missing_names
from jitload.toolchain.host import load_json, save_json


def find_failure(work: Work) -> CompileError | None:
    """Return the error that an earlier build of the library recorded, or None. In the mode `rebuild`, return None."""
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
    """Record an error about names that jitload's replacements of torch's headers lack. Skip other errors.

    Record nothing if the text includes headers that the cache key does not cover.
    """
    assert request.host is not None
    texts = [text for unit in request.host.units for _, text in unit.pieces]
    if not missing_names(error.log, texts) or any(_headers_of_user(request)):
        return
    facts = {name: getattr(error, name) for name in ("stage", "name", "log", "diagnostics", "command", "hint")}
    save_json(_record_path(work), facts)


def _headers_of_user(request: Request) -> Iterator[str]:
    """Yield the included headers that the cache key does not cover.

    These are files in the user's directories. For each `#include` of a macro, yield `"a macro"`.
    """
    assert request.host is not None
    dirs = [Path(path) for path in request.include_dirs if Path(path) != LIGHT_HEADER_DIR]
    for unit in request.host.units:
        for _, text in unit.pieces:
            yield from (
                name or "a macro"
                for name in included_names(text)
                if not name or any((path / name).is_file() for path in dirs)
            )


def _record_path(work: Work) -> Path:
    return work.cache_dir / ".tools" / f"{work.key.digest[:32]}.lacking"
