"""Writes a type stub of a module, which editors read to complete and check calls of its functions."""

from __future__ import annotations

import keyword
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import inspect

    from jitload.loader.module import Module

_HEAD = """\
# Made by write_stub() from the library {name!r}.
from typing import Any

import torch
"""
_FUNCTION = '''
class _{name}:
    """{doc}"""

    def __call__({parameters}) -> {returns}: ...
    def __getitem__(self, key: Any, /) -> "_{name}": ...
    def call(self, *args: Any, **kwargs: Any) -> {returns}: ...

{name}: _{name}
'''


def write_stub(module: Module, path: str | os.PathLike[str]) -> Path:
    """Write the stub and return its path."""
    facts = module._jitload_facts()
    names = [name for name in (*facts["functions"], *module) if name.isidentifier() and not keyword.iskeyword(name)]
    typed = [name for name in dict.fromkeys(names) if name in facts["functions"]]
    others = [name for name in dict.fromkeys(names) if name not in facts["functions"]]
    target = Path(path)
    target.write_text(
        _HEAD.format(name=facts["name"])
        + "".join(_function(name, str(module[name].__doc__), module[name].__signature__) for name in typed)
        + "".join(f"\ndef {name}(*args: Any) -> Any: ...\n" for name in others),
        encoding="utf-8",
    )
    return target


def _function(name: str, doc: str, signature: inspect.Signature) -> str:
    parameters = [f"{parameter.name}: {_type(parameter.annotation)}" for parameter in signature.parameters.values()]
    text = doc.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\n    ")
    return _FUNCTION.format(
        name=name,
        doc=text,
        parameters=", ".join(["self", *parameters, "/"]),
        returns=_type(signature.return_annotation),
    )


def _type(annotation: object) -> str:
    """Return an annotation as text: Python's types by their names, every kind of tensor as torch's."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    if text.partition(" ")[0].endswith("Tensor"):
        text = "torch.Tensor" + text.partition(" ")[1] + text.partition(" ")[2]
    return text
