"""Records which libraries a run loads (`JITLOAD_RECORD`), in a form from which `prebuild` can build them elsewhere.

The file is a JSON list with one call on each line. Several processes may write to it: each adds only calls that the
file does not have.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jitload.errors import JitLoadError, warn_once
from jitload.request.arguments import Call, Options, TorchText
from jitload.request.cubins import read_labelled_cubins
from jitload.request.launch import Launch
from jitload.request.sources import Sources
from jitload.request.tma import Tma
from jitload.request.tune import Tune, Tuned

_START, _END = b"[\n", b"\n]\n"
_TYPES: dict[str, Callable[..., Any]] = {
    "@Path": Path,
    "@Tune": lambda values, **words: Tune(**words, **dict(values)),
    "@bytes": base64.b64decode,
    **{f"@{kind.__name__}": kind for kind in (Call, Launch, Options, Sources, Tma, TorchText, Tuned)},
}


def record_item(path: str, item: dict[str, Any], is_same: Callable[[dict[str, Any]], bool]) -> None:
    """Add a call to the file of a record. If `is_same` is false for the call as read from JSON, warn instead."""
    try:
        line = json.dumps(item)
        is_repeatable = is_same(json.loads(line))
    except (TypeError, ValueError, LookupError, JitLoadError):
        is_repeatable = False
    if is_repeatable:
        _add_line(path, line.encode())
    else:
        name = item["name"]
        warn_once(f"module {name!r} is not recorded, because its call cannot be repeated from JSON in another process")


def _add_line(path: str, line: bytes) -> None:
    """Add a line to a file unless the file has it. Only one process writes to the file at a time."""
    import fcntl

    try:
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            data = file.read()
            if data and not (data.startswith(_START) and data.endswith(_END)):
                raise JitLoadError(f"JITLOAD_RECORD={path} is a file of another kind: name a new file")
            if line not in (known.removesuffix(b",") for known in data.splitlines()):
                file.seek(-len(_END) if data else 0, os.SEEK_END)
                file.write((b",\n" if data else _START) + line + _END)
    except OSError as error:
        raise JitLoadError(f"JITLOAD_RECORD={path} cannot be written: {error.strerror}") from error


def encode_call(call: Call, archs: tuple[str, ...]) -> dict[str, Any]:
    """Return a call as JSON values, with the texts of its source files. `archs` are what its `arch` means here."""
    cubins = call.sources.cubins or {}
    data = dict(zip(cubins, (cubin.data for cubin in read_labelled_cubins(cubins)), strict=True))
    portable = call._replace(sources=call.sources._replace(cubins=data or None), makes="library")
    return {"name": call.name, "arch": _encode(call.arch), "archs": archs, "call": _encode(portable)}


def decode_call(item: Mapping[str, Any]) -> Call:
    """Return the call of a record. Its architectures are those of the recording unless `item["arch"]` names others."""
    call: Call = _decode(item["call"])
    return call._replace(arch=item["arch"] if item["arch"] != "native" else item["archs"] or "native")


def _encode(value: Any) -> Any:
    """Return a value as JSON values. Records are mappings of one item, whose name no exported function can have."""
    if isinstance(value, Path):
        return {"@Path": str(value.absolute())}
    if isinstance(value, bytes):
        return {"@bytes": base64.b64encode(value).decode()}
    if (name := f"@{type(value).__name__}") in _TYPES:
        names = getattr(value, "_fields", None) or value.__slots__
        return {name: {field: _encode(getattr(value, field)) for field in names}}
    if isinstance(value, Mapping):
        return {name: _encode(item) for name, item in value.items()}
    return [_encode(item) for item in value] if isinstance(value, list | tuple | set | frozenset) else value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_decode, value))
    if not isinstance(value, dict):
        return value
    items = {name: _decode(item) for name, item in value.items()}
    name = next(iter(items), "")
    if not name.startswith("@"):
        return items
    if name not in _TYPES:
        raise JitLoadError(f"the record has {name[1:]}, which this release of jitload does not know: record again")
    return _TYPES[name](**items[name]) if isinstance(items[name], dict) else _TYPES[name](items[name])
