"""Which headers of the user's a device compile read: from NVRTC where it tells, else from the text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)
_ROOT_OF_ABSOLUTE = {True: (Path("/"),), False: ()}  # a full name needs no include directory
_TRACES_HEADERS = (13, 0)  # the first NVRTC whose time trace has an event for every header


def trace_option(version: tuple[int, ...], prefix: Path) -> tuple[str, ...]:
    """Return the option by which NVRTC lists the headers it reads, in `<prefix>.json`, where it has one."""
    return (f"--fdevice-time-trace={prefix}",) if version >= _TRACES_HEADERS else ()


def read_headers(
    trace: Path | None, texts: Sequence[str], include_dirs: Sequence[Path], own: Sequence[Path]
) -> tuple[Path, ...]:
    """Return the headers that a compile read outside the directories in `own`, sorted.

    Args:
        trace: NVRTC's time trace; None where this NVRTC has no such thing.
        texts: The source.
        include_dirs: The user's include directories, in order.
        own: Directories of headers whose versions are in the key already.
    """
    found = _traced(trace) if trace is not None else _scanned(texts, include_dirs)
    return tuple(sorted({path for path in found if not any(path.is_relative_to(root) for root in own)}))


def _traced(trace: Path) -> Iterator[Path]:
    for event in json.loads(trace.read_bytes())["traceEvents"]:
        if event.get("name") == "Processing Header File":
            path = Path(event["args"]["detail"]).absolute()
            if path.is_file():
                yield path


def _scanned(texts: Iterable[str], include_dirs: Sequence[Path]) -> Iterator[Path]:
    """Follow every `#include` of the texts, those in comments and dead branches too: rather too many than too few.

    A header that is named by a macro is not seen; NVRTC 13 sees it.
    """
    waiting: list[tuple[str, Path | None]] = [(text, None) for text in texts]
    seen: set[Path] = set()
    while waiting:
        text, home = waiting.pop()
        for quoted, angled in _INCLUDE.findall(text):
            homes = [home] if quoted and home else []
            for directory in (*homes, *include_dirs, *_ROOT_OF_ABSOLUTE[(quoted or angled).startswith("/")]):
                path = (directory / (quoted or angled)).absolute()
                if path.is_file():
                    yield path
                    if path.resolve() not in seen:  # by its own name: `a/../a/../x.h` has no end
                        seen.add(path.resolve())
                        waiting.append((path.read_text(errors="replace"), path.parent))
