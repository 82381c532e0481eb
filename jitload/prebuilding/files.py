"""Reads the requests of the command `jitload prebuild` from a Python file or module, or from TOML or JSON."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jitload.errors import JitLoadError, LaunchSpecError
from jitload.prebuilding.requests import import_object, import_user_module
from jitload.request.launch import Launch
from jitload.request.tune import Tune, is_resource

_DEFAULT_NAME = "REQUESTS"
_DATA_SUFFIXES = (".toml", ".json")
_PATH_KEYWORDS = ("sources", "cuda_files", "cpp_files", "extra_include_paths")
_PYTHON = re.compile(r"(.+\.py)(?::(\w+))?", re.DOTALL)


def read_requests(target: str) -> list[Any]:
    """Return the requests that a target of `jitload prebuild` names.

    Args:
        target: `kernels.toml`, `kernels.json`, `kernels.py:NAME` or `package.module:NAME`. `NAME` is a list of requests
            or a function that returns such a list. The default of `NAME` is `REQUESTS`.

    Raises:
        JitLoadError: There is no such file or module, or it has no requests.
    """
    if target.endswith(_DATA_SUFFIXES):
        return _read_data(Path(target).absolute(), target)
    if match := _PYTHON.fullmatch(target):
        file, name = Path(match[1]), match[2] or _DEFAULT_NAME
        _import_file(file.absolute(), target)
        return _read_object(f"{file.stem}:{name}", target)
    if Path(target).is_file():
        raise JitLoadError(
            f"{target!r} is not a file of requests, such as kernels.py, kernels.toml or kernels.json. To build it as a "
            f"source: jitload compile {target}"
        )
    if not re.fullmatch(r"[\w.:-]+", target):
        raise JitLoadError(f"{target!r} names no requests: pass kernels.py, kernels.toml, kernels.json or a.module")
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


# ---- TOML and JSON ---------------------------------------------------------------------------------------------


def _read_data(path: Path, target: str) -> list[Any]:
    """Return the requests in a TOML or JSON file.

    Paths in the requests are relative to the file's directory. Triton kernels can be imported from this directory, too.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else _read_toml(text, target)
    except (OSError, ValueError, RecursionError) as error:
        raise JitLoadError(f"{target} cannot be read: {error}") from error
    rows = data.get("requests") if isinstance(data, dict) and data.keys() == {"requests"} else data
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise JitLoadError(f"{target} must contain `requests` and nothing else: [[requests]] in TOML, a list in JSON")
    sys.path.insert(0, str(path.parent))
    return [_request(row, path.parent, f"{target}, request {number}") for number, row in enumerate(rows, 1)]


def _read_toml(text: str, target: str) -> Any:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        try:
            import tomli as tomllib
        except ImportError as error:
            raise JitLoadError(
                f"{target} cannot be read, because Python 3.10 has no TOML parser: pip install tomli, or use JSON"
            ) from error
    return tomllib.loads(text)


def _request(row: Mapping[str, Any], home: Path, where: str) -> dict[str, Any]:
    request = dict(row)
    for word in _PATH_KEYWORDS:
        if word in request:
            paths = [request[word]] if isinstance(request[word], str) else request[word]
            request[word] = _below(home, paths, f"{where}, {word}")
    if isinstance(tuned := request.get("tuned"), str) and not is_resource(tuned):
        request["tuned"] = str(home / tuned)
    if isinstance(cubins := request.get("embed_cubin"), dict):
        files = _below(home, list(cubins.values()), f"{where}, embed_cubin")
        request["embed_cubin"] = dict(zip(cubins, files, strict=True))
    if isinstance(functions := request.get("functions"), dict) and "kernel" not in request:
        request["functions"] = {name: _launch(value, f"{where}, {name!r}") for name, value in functions.items()}
    return request


def _below(home: Path, paths: Any, where: str) -> list[str]:
    if not isinstance(paths, Sequence) or not all(isinstance(path, str) for path in paths):
        raise JitLoadError(f"{where}: paths must be strings, got {paths!r}")
    return [str(home / path) for path in paths]


def _launch(value: Any, where: str) -> Any:
    """Return a `Launch` for a table, and a list of `Launch` objects for a list of tables.

    Other values, such as docstrings, are returned unchanged.
    """
    if isinstance(value, list):
        return [_launch(item, where) for item in value]
    if not isinstance(value, dict):
        return value
    try:
        if isinstance(tune := value.get("tune"), dict):
            value = {**value, "tune": Tune(**tune)}
        return Launch(**value)
    except (TypeError, LaunchSpecError) as error:
        raise JitLoadError(f"{where}: {error}".replace("Launch.__init__() ", "a Launch ")) from error
