"""Reads the requests of the command `jitload prebuild` from a Python file or module, or from a record."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jitload.errors import JitLoadError
from jitload.prebuilding.requests import import_object, import_user_module

_DEFAULT_NAME = "REQUESTS"
_PYTHON = re.compile(r"(.+\.py)(?::(\w+))?", re.DOTALL)


def read_requests(target: str) -> list[Any]:
    """Return the requests that a target of `jitload prebuild` names.

    Args:
        target: `record.json`, `kernels.py:NAME` or `package.module:NAME`. `NAME` is a list of requests or a function
            that returns such a list. The default of `NAME` is `REQUESTS`.

    Raises:
        JitLoadError: There is no such file or module, or it has no requests.
    """
    if target.endswith(".json"):
        return _read_record(target)
    if match := _PYTHON.fullmatch(target):
        file, name = Path(match[1]), match[2] or _DEFAULT_NAME
        _import_file(file.absolute(), target)
        return _read_object(f"{file.stem}:{name}", target)
    if Path(target).is_file() or not re.fullmatch(r"[\w.:-]+", target):
        hint = "pass kernels.py, a.module or a record.json; `jitload compile` builds sources"
        raise JitLoadError(f"{target!r} names no requests: {hint}")
    if os.getcwd() not in sys.path and "" not in sys.path:  # `python -m` also imports from the current directory
        sys.path.insert(0, os.getcwd())
    return _read_object(target if ":" in target else f"{target}:{_DEFAULT_NAME}", target)


# ---- Python ----------------------------------------------------------------------------------------------------


def _import_file(path: Path, target: str) -> None:
    """Import a Python file as a module of the same name. Workers can then import the file's kernels."""
    if not path.is_file():
        raise JitLoadError(f"{target}: there is no file {path}")
    sys.path.insert(0, str(path.parent))
    imported = getattr(import_user_module(path.stem, target), "__file__", None)
    if imported is None or not os.path.samefile(imported, path):
        raise JitLoadError(
            f"{target} cannot be imported, because {path.stem!r} is also another module ({imported}): rename the file"
        )


def _read_object(name: str, target: str) -> list[Any]:
    """Return the requests from `module:name`, which is a list or a function that returns a list."""
    value = import_object(name, target)
    if callable(value):
        try:
            value = list(value())
        except Exception as error:
            raise JitLoadError(f"{target}: {name}() failed: {type(error).__name__}: {error}") from error
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise JitLoadError(f"{target}: {name} must be a list of mappings, or a function that returns one")
    return list(value)


# ---- records ---------------------------------------------------------------------------------------------------


def _read_record(target: str) -> list[Any]:
    """Return the requests in a file that `jitload record` wrote, a JSON list."""
    try:
        rows = json.loads(Path(target).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise JitLoadError(f"{target} cannot be read: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise JitLoadError(f"{target} must be a list, which `jitload record` writes")
    return rows
