"""The requests of `jitload prebuild`: from a Python file or module, or a file of TOML or JSON."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jitload.errors import JitLoadError, LaunchSpecError
from jitload.launch import Launch
from jitload.prebuilding.requests import import_for, import_named

_NAME = "REQUESTS"
_DATA = (".toml", ".json")
_PATHS = ("sources", "cuda_files", "cpp_files", "extra_include_paths")
_PYTHON = re.compile(r"(.+\.py)(?::(\w+))?", re.DOTALL)


def read_requests(target: str) -> list[Any]:
    """Return the requests that a target of the command names.

    Args:
        target: `kernels.toml` or `kernels.json`; `kernels.py` or `package.module`, each with `:NAME` where the list, or
            the function that returns it, is not called REQUESTS.

    Raises:
        JitLoadError: There is no such file or module, or it holds no requests.
    """
    if target.endswith(_DATA):
        return _read_data(Path(target).absolute(), target)
    if found := _PYTHON.fullmatch(target):
        _import_file(Path(found[1]).absolute(), target)
        return _listed(f"{Path(found[1]).stem}:{found[2] or _NAME}", target)
    if not re.fullmatch(r"[\w.:-]+", target):
        raise JitLoadError(f"{target!r} names no requests: give kernels.py, a.module, kernels.toml or kernels.json")
    if os.getcwd() not in sys.path and "" not in sys.path:  # as with `python -m`
        sys.path.insert(0, os.getcwd())
    return _listed(target if ":" in target else f"{target}:{_NAME}", target)


# ---- Python ----------------------------------------------------------------------------------------------------


def _import_file(path: Path, target: str) -> None:
    """Import a file as the module of its name, so that the kernels in it can be imported by workers, too."""
    if not path.is_file():
        raise JitLoadError(f"{target}: there is no file {path}")
    sys.path.insert(0, str(path.parent))
    found = getattr(import_for(path.stem, target), "__file__", None)
    if found is None or not os.path.samefile(found, path):
        raise JitLoadError(f"{target}: a module {path.stem!r} is there already ({found}); name the file otherwise")


def _listed(name: str, target: str) -> list[Any]:
    """Return what a list of a module holds, or a function of it returns."""
    value = import_named(name, target)
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
    """Return the requests of a file; paths in it are relative to it, and so are the modules of its Triton kernels."""
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else _read_toml(text, target)
    except (OSError, ValueError, RecursionError) as error:
        raise JitLoadError(f"{target} cannot be read: {error}") from error
    rows = data.get("requests") if isinstance(data, dict) and data.keys() == {"requests"} else data
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise JitLoadError(f"{target} must hold `requests` and nothing else: [[requests]] in TOML, a list in JSON")
    sys.path.insert(0, str(path.parent))
    return [_request(row, path.parent, f"{target}, request {number}") for number, row in enumerate(rows, 1)]


def _read_toml(text: str, target: str) -> Any:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        try:
            import tomli as tomllib
        except ImportError as error:
            raise JitLoadError(f"{target} is TOML: Python 3.10 needs pip install tomli, or write it as JSON") from error
    return tomllib.loads(text)


def _request(row: Mapping[str, Any], home: Path, where: str) -> dict[str, Any]:
    request = dict(row)
    for word in _PATHS:
        if word in request:
            paths = [request[word]] if isinstance(request[word], str) else request[word]
            request[word] = _below(home, paths, f"{where}, {word}")
    if isinstance(cubins := request.get("embed_cubin"), dict):
        files = _below(home, list(cubins.values()), f"{where}, embed_cubin")
        request["embed_cubin"] = dict(zip(cubins, files, strict=True))
    if isinstance(functions := request.get("functions"), dict) and "kernel" not in request:
        request["functions"] = {name: _launch(value, f"{where}, {name!r}") for name, value in functions.items()}
    return request


def _below(home: Path, paths: Any, where: str) -> list[str]:
    if not isinstance(paths, Sequence) or not all(isinstance(path, str) for path in paths):
        raise JitLoadError(f"{where}: paths are texts, got {paths!r}")
    return [str(home / path) for path in paths]


def _launch(value: Any, where: str) -> Any:
    """Return a table as the `Launch` that it describes; a text is a docstring."""
    if not isinstance(value, dict):
        return value
    try:
        return Launch(**value)
    except (TypeError, LaunchSpecError) as error:
        raise JitLoadError(f"{where}: {error}".replace("Launch.__init__() ", "a Launch ")) from error
