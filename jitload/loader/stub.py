"""Writes a type stub of a module, which editors read to complete and check calls of its functions."""

from __future__ import annotations

import ast
import json
import keyword
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jitload.loader.display import ShownModule
    from jitload.loader.function import TypedFunction

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


def write_stub(module: ShownModule, path: str | os.PathLike[str]) -> Path:
    """Write the stub of a module to a path, and return the path."""
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


def _functions(module: ShownModule, names: list[str]) -> Iterator[str]:
    """Yield the text of the stub for the names that tvm-ffi or pybind11 exports."""
    if not names:
        return
    of_torch = module.__dict__.get("_jitload_torch")
    objects = {name: getattr(of_torch, name) for name in names if hasattr(of_torch, name)}
    for name in names:
        if name not in objects:
            yield _function(name, _ffi_signature(module, name))
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
    """Return the text of an annotation, in which any tensor type is replaced by `torch.Tensor`."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    if text.partition(" ")[0].endswith("Tensor"):
        text = "torch.Tensor" + text.partition(" ")[1] + text.partition(" ")[2]
    return text


# ---- functions that tvm-ffi exports ----------------------------------------------------------------------------------
# tvm-ffi keeps the types of parameters only if the C++ is compiled with TVM_FFI_DLL_EXPORT_INCLUDE_METADATA, which
# takes half a second more.

_OF_PYTHON = {
    "torch.Tensor": ("Tensor", "DLTensor*"),
    "int": ("int",),
    "float": ("float",),
    "bool": ("bool",),
    "None": ("None",),
    "str": ("String", "string", "char*"),
    "bytes": ("Bytes",),
    "Sequence[int]": ("Shape",),
    "Callable[..., Any]": ("Function",),
}
_SIMPLE = {name: python for python, names in _OF_PYTHON.items() for name in names}
_GENERIC = {
    **dict.fromkeys(("Array", "List"), "Sequence[{}]"),
    **dict.fromkeys(("Map", "Dict"), "Mapping[{}]"),
    **dict.fromkeys(("Tuple", "tuple"), "tuple[{}]"),
}
# Names in pybind11's signatures that are known in a stub, because the stub imports them or Python defines them.
_KNOWN_NAMES = frozenset(("torch", "typing", "collections", *_OF_PYTHON, "list", "tuple", "dict", "set", "object"))


class Signature(NamedTuple):
    """A function in a stub: its parameters (`x: torch.Tensor, n: int, /`), result type and docstring."""

    parameters: str
    returns: str
    doc: str


UNKNOWN = Signature("*args: Any, **kwargs: Any", "Any", "")


def _ffi_signature(module: ShownModule, name: str) -> Signature:
    metadata, doc = module.get_function_metadata(name), module.get_function_doc(name) or ""
    if not metadata or "type_schema" not in metadata:
        return UNKNOWN._replace(parameters="*args: Any", doc=doc)
    returns, types = _read_schema(json.loads(metadata["type_schema"]))
    named = [f"arg{i}: {type_}" for i, type_ in enumerate(types)]
    return Signature(", ".join([*named, "/"] if named else []), returns, doc)


def _read_schema(schema: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the result type and the parameter types from tvm-ffi's description of a function.

    The types are in `named_args` (`return` and `params`), or in `args` with the result first.
    """
    named = schema.get("named_args")
    returns, *types = (*named["return"], *named["params"]) if named else schema.get("args", [{"type": "Any"}])
    return _schema_type(returns), list(map(_schema_type, types))


def _schema_type(node: Mapping[str, Any]) -> str:
    return _python_name(str(node["type"]), [_schema_type(part) for part in node.get("args", ())])


def _python_name(name: str, arguments: Sequence[str]) -> str:
    base = re.split(r"::|\.", name)[-1]
    if base in ("Optional", "optional") and len(arguments) == 1:
        return f"{arguments[0]} | None"
    if base in ("Variant", "variant") and arguments:
        return " | ".join(dict.fromkeys(arguments))
    if base in _GENERIC and arguments:
        return _GENERIC[base].format(", ".join(arguments))
    return _SIMPLE.get(base, "Any")


# ---- functions that pybind11 exports ---------------------------------------------------------------------------------


def pybind_signatures(name: str, doc: str) -> list[Signature]:
    """Return the signatures that pybind11 has written into a docstring, one for each overload."""
    lines = [re.sub(r"^\d+\. ", "", line) for line in doc.splitlines()]
    signatures = [signature for line in lines if line.startswith(f"{name}(") and (signature := _read_line(line))]
    overloads = [signature for signature in signatures if signature != UNKNOWN] or [UNKNOWN]
    comment = doc.partition("\n\n")[2].strip() if len(overloads) == 1 else ""
    # torch's load_inline passes the name of a function as its docstring.
    return [overload._replace(doc="" if comment == name else comment) for overload in overloads]


def _read_line(line: str) -> Signature | None:
    line = re.sub(r"=\s*<[^>]*>", "= ...", line)  # pybind11 shows some default values as `<…>`, which is not Python
    try:
        (function,) = ast.parse(f"def {line}: ...").body
    except (SyntaxError, ValueError):
        return None
    assert isinstance(function, ast.FunctionDef)
    function = _Known().visit(function)
    if ast.unparse(function.args) == "*args, **kwargs":  # pybind11 lists the overloads below
        return UNKNOWN
    return Signature(ast.unparse(function.args), ast.unparse(function.returns) if function.returns else "Any", "")


class _Known(ast.NodeTransformer):
    """Replaces each name that a stub cannot resolve with `Any`, and each default value with `...`."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        name = node.id if node.id in _KNOWN_NAMES else {"Tuple": "tuple", "List": "list"}.get(node.id, "Any")
        return ast.Name(name)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        root = ast.unparse(node).partition(".")[0]
        return node if root in _KNOWN_NAMES else ast.Name("Any")

    def visit_arguments(self, node: ast.arguments) -> ast.arguments:
        self.generic_visit(node)
        node.defaults = [ast.Constant(...) for _ in node.defaults]
        node.kw_defaults = [default and ast.Constant(...) for default in node.kw_defaults]
        return node
