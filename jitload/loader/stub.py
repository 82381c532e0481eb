"""Writes a type stub of a module, which editors read to complete and check calls of its functions."""

from __future__ import annotations

import keyword
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jitload.loader.cpp_signatures import Signature
    from jitload.loader.function import TypedFunction
    from jitload.loader.module import Module

_HEAD = """\
# Made by write_stub() from the library {name!r}.
import collections.abc
import typing
from collections.abc import Callable, Mapping, Sequence
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
    """Write the stub and return its path."""
    facts = module._jitload_facts()
    names = [name for name in module if name.isidentifier() and not keyword.iskeyword(name)]
    typed = [name for name in names if name in facts["functions"]]
    parts = [_HEAD.format(name=facts["name"]), *(_typed_function(name, module[name]) for name in typed)]
    parts += _functions(module, [name for name in names if name not in facts["functions"]])
    target = Path(path)
    target.write_text("".join(parts), encoding="utf-8")
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


def _functions(module: Module, names: list[str]) -> Iterator[str]:
    """Yield the stubs of functions that tvm-ffi or pybind11 converts."""
    if not names:
        return
    from jitload.inspection.source import kept_texts
    from jitload.loader.cpp_signatures import ffi_signatures, pybind_signatures

    of_torch = module.__dict__.get("_jitload_torch")
    objects = {name: getattr(of_torch, name) for name in names if hasattr(of_torch, name)}
    others = [name for name in names if name not in objects]
    texts = kept_texts(module.__dict__["_jitload_origin"]) if others else []
    for name, signature in ffi_signatures(module, others, texts).items():
        yield _function(name, signature)
    for name, value in objects.items():
        if isinstance(value, type) or not callable(value):
            yield f"\n{name}: Any\n"
            continue
        signatures = pybind_signatures(name, value.__doc__ or "")
        decorator = "@typing.overload\n" if len(signatures) > 1 else ""
        for signature in signatures:
            yield _function(name, signature, decorator)


def _function(name: str, signature: Signature, decorator: str = "") -> str:
    body = f'\n    """{_quoted(signature.doc)}"""\n' if signature.doc else " ...\n"
    return f"\n{decorator}def {name}({signature.parameters}) -> {signature.returns}:{body}"


def _quoted(doc: str) -> str:
    text = doc.strip().replace("\\", "\\\\").replace('"', '\\"')
    return re.sub(r"\n(?=.)", "\n    ", text)


def _type(annotation: object) -> str:
    """Return an annotation as text: Python's types by their names, every kind of tensor as torch's."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    if text.partition(" ")[0].endswith("Tensor"):
        text = "torch.Tensor" + text.partition(" ")[1] + text.partition(" ")[2]
    return text
