"""Writes a type stub of a module, which editors read to complete and check calls of its functions."""

from __future__ import annotations

import inspect
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

    def __call__{call}: ...
{configured}    def call(self, *args: Any, **kwargs: Any) -> {returns}: ...

{name}: _{name}
'''
_CONFIGURED = """\
    def __getitem__(self, key: Any, /) -> "_{name}": ...
    def check(self, *args: Any, on: str = "cpu") -> None: ...
    extents: Any
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
    own_name = "self"
    while own_name in signature.parameters:
        own_name = f"_{own_name}"
    own = inspect.Parameter(own_name, inspect.Parameter.POSITIONAL_ONLY)
    call = str(signature.replace(parameters=[own, *signature.parameters.values()]))
    is_kernel = "kernel" in function._jitload_facts
    return _TYPED_FUNCTION.format(
        name=name,
        doc=_quoted(str(function.__doc__)),
        call=re.sub(r"[\w.]+\.Tensor\b", "torch.Tensor", call),  # without torch, tensors are tvm-ffi's
        returns=call.rpartition(" -> ")[2],
        configured=_CONFIGURED.format(name=name) if is_kernel else "",
    )


def _quoted(doc: str) -> str:
    text = doc.strip().replace("\\", "\\\\").replace('"', '\\"')
    return re.sub(r"\n(?=.)", "\n    ", text)
