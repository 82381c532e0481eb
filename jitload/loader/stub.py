"""Writes a type stub of a module, which editors read to complete and check calls of its functions."""

from __future__ import annotations

import keyword
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jitload.loader.function import TypedFunction
    from jitload.loader.module import Module

_HEAD = """\
# Made by write_stub() from the library {name!r}.
from typing import Any

import torch
"""
_TYPED_FUNCTION = '''
class _{name}:
    """{doc}"""

    def __call__({parameters}) -> {returns}: ...
{configured}    def call(self, *args: Any, **kwargs: Any) -> {returns}: ...

{name}: _{name}
'''
_CONFIGURED = """\
    def __getitem__(self, key: Any, /) -> "_{name}": ...
"""


def write_stub(module: Module, path: str | os.PathLike[str]) -> Path:
    """Write the stub of a module to a path, and return the path.

    The types of functions that tvm-ffi or pybind11 exports are not known.
    """
    facts = module._jitload_facts()
    names = [name for name in module if name.isidentifier() and not keyword.iskeyword(name)]
    parts = (
        _typed_function(name, module[name]) if name in facts["functions"] else f"\n{name}: Any\n" for name in names
    )
    target = Path(path)
    target.write_text("".join((_HEAD.format(name=facts["name"]), *parts)), encoding="utf-8")
    return target


def _typed_function(name: str, function: TypedFunction) -> str:
    signature = function.__signature__
    parameters = [f"{p.name}: {_type(p.annotation)}" for p in signature.parameters.values()]
    is_kernel = "kernel" in function._jitload_facts
    return _TYPED_FUNCTION.format(
        name=name,
        doc=_quoted(str(function.__doc__)),
        parameters=", ".join(["_self" if "self" in signature.parameters else "self", *parameters, "/"]),
        returns=_type(signature.return_annotation),
        configured=_CONFIGURED.format(name=name) if is_kernel else "",
    )


def _quoted(doc: str) -> str:
    text = doc.strip().replace("\\", "\\\\").replace('"', '\\"')
    return re.sub(r"\n(?=.)", "\n    ", text)


def _type(annotation: object) -> str:
    """Return the text of an annotation, in which any tensor type is replaced by `torch.Tensor`."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    if text.partition(" ")[0].endswith("Tensor"):
        text = "torch.Tensor" + text.partition(" ")[1] + text.partition(" ")[2]
    return text
