"""Describe the arguments of a typed function for torch and JAX, from the types of its parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from jitload.errors import LaunchSpecError, nearest_name
from jitload.signature.types import describe_type, is_complex, is_pointer_to_pointer, is_read_only

_SCHEMA_TYPES = {"int": "SymInt", "uint": "SymInt", "float": "float", "bool": "bool"}
_PAIRS = {"float16": "complex32", "float32": "complex64", "float64": "complex128"}
_VECTOR = re.compile(r"=([friu])\d+\*\d+")  # the layout of a CUDA vector
_PYTHON_FUNCTION = 'register a Python function that calls it, with schema="(Tensor x, Tensor(a!) y, SymInt n) -> ()"'


class Argument(NamedTuple):
    """One argument of the function that an operator calls.

    Attributes:
        name: The argument's name.
        kind: `tensor`, `tensors` for a list of tensors, `int`, `device`, or `other`.
        declaration: The argument's declaration in a schema, `Tensor(a!)? y` or `SymInt n`.
        cpp_type: The argument's type in C++, or "" if a schema declares the argument.
        is_nullable: Whether the argument may be None.
        is_written: Whether the function writes to the tensor.
        is_strided: Whether the tensor need not be contiguous.
        is_host: Whether the tensor must be on the CPU, because a host function takes a pointer to host memory.
        dtypes: The dtype that each kernel of the function requires, or None for any dtype.
        default: A tuple that contains the default value, or () if there is none.
        keyword: The name of a keyword-only argument in the schema, or "".
    """

    name: str
    kind: Literal["tensor", "tensors", "int", "device", "other"]
    declaration: str
    cpp_type: str = ""
    is_nullable: bool = False
    is_written: bool = False
    is_strided: bool = False
    is_host: bool = False
    dtypes: tuple[str | None, ...] = (None,)
    default: tuple[Any, ...] = ()
    keyword: str = ""

    @property
    def is_tensor(self) -> bool:
        """Whether the argument is a tensor."""
        return self.kind == "tensor"

    @property
    def has_tensors(self) -> bool:
        """Whether the argument is a tensor or a list of tensors."""
        return self.kind in ("tensor", "tensors")

    def accepts(self, dtype: str, kernel: int = 0) -> bool:
        """Return whether the kernel with the index `kernel` takes a tensor of this dtype."""
        expected = self.dtypes[kernel]
        return expected in (None, dtype) or (is_complex(self.cpp_type) and _PAIRS.get(expected or "") == dtype)


class Signature(NamedTuple):
    """The arguments and results of a function.

    Attributes:
        name: The function's name, for error messages.
        arguments: The function's arguments in order.
        returns: The tensors that the function returns. Those that may be None are nullable.
        devices: The devices that the function runs on: `CUDA`, `CPU` or `CUDA or CPU`; "" if unknown.
        requires: What a call requires: terms as the user wrote them, and terms over the arguments alone.
    """

    name: str
    arguments: tuple[Argument, ...]
    returns: tuple[Argument, ...] = ()
    devices: str = ""
    requires: tuple[tuple[str, str], ...] = ()


def check_names(names: Iterable[str], arguments: Sequence[Argument], *, function: str, field: str) -> None:
    """Raise LaunchSpecError unless each name belongs to a tensor that the function may write to."""
    tensors = {argument.name: argument for argument in arguments if argument.is_tensor}
    for name in names:
        if name not in tensors:
            suggestion = nearest_name(name, list(tensors))
            hint = f"Did you mean {suggestion!r}?" if suggestion else f"Its tensors are {', '.join(tensors) or 'none'}."
            raise LaunchSpecError(f"there is no tensor {name!r}", kernel=function, field=field, hint=hint)
        if not tensors[name].is_written:
            kind = f" ({tensors[name].cpp_type})" if tensors[name].cpp_type else ""
            raise LaunchSpecError(
                f"{name!r}{kind} is const, so it is an input and cannot be in {field}", kernel=function, field=field
            )


def read_function(function: Any) -> Signature:
    """Return the signature of a typed function, from the types that the compiler reported."""
    facts: Mapping[str, Any] | None = getattr(function, "_jitload_facts", None)
    name = str(getattr(function, "__name__", function))
    if not isinstance(facts, Mapping):
        raise LaunchSpecError(
            "the types of its arguments are unknown: only functions from kernels or from C++ of plain types have them",
            kernel=name, field="schema", hint='Pass them: schema="(Tensor x, Tensor(a!) y, SymInt n) -> ()"',
        )  # fmt: skip
    if facts.get("returns") not in (None, "None"):
        raise LaunchSpecError(
            f"it returns a number ({facts['returns']}), which torch could not know while it compiles",
            kernel=name, hint=f"Let it return void, or {_PYTHON_FUNCTION}",
        )  # fmt: skip
    requires = tuple((text, own) for text, own in facts.get("requires", ()))
    return Signature(name, tuple(_read_arguments(name, facts)), devices=_devices(facts["archs"]), requires=requires)


def with_defaults(signature: Signature, defaults: Mapping[str, Any]) -> Signature:
    """Return the signature of a typed function with default values for some arguments."""
    names = [argument.name for argument in signature.arguments]
    if unknown := [name for name in defaults if name not in names]:
        suggestion = nearest_name(str(unknown[0]), names)
        hint = f"Did you mean {suggestion!r}?" if suggestion else f"Its arguments are {', '.join(names) or 'none'}."
        problem = f"there is no argument {unknown[0]!r}"
        raise LaunchSpecError(problem, kernel=signature.name, field="defaults", hint=hint)
    arguments = (_with_default(signature.name, a, defaults[a.name]) if a.name in defaults else a
                 for a in signature.arguments)  # fmt: skip
    return signature._replace(arguments=tuple(arguments))


def _with_default(function: str, argument: Argument, value: Any) -> Argument:
    schema_type = argument.declaration.partition(" ")[0]
    types = {"SymInt": int, "float": int | float, "bool": bool}.get(schema_type, ())
    is_valid = value is None if argument.is_nullable else isinstance(value, types)
    if not is_valid or (isinstance(value, bool) and schema_type != "bool"):
        expected = "None, the default of an optional tensor" if argument.is_nullable else "an int, float or bool"
        raise LaunchSpecError(
            f"{value!r} cannot be the default of {argument.declaration!r}: the default must be {expected}, of its type",
            kernel=function, field="defaults",
        )  # fmt: skip
    value = float(value) if schema_type == "float" else value
    return argument._replace(declaration=f"{argument.declaration}={value!r}", default=(value,))


def check_has_launch(function: Any) -> None:
    """Raise LaunchSpecError for a kernel without a grid or block. Calls from torch and JAX cannot pass these."""
    facts: Mapping[str, Any] = getattr(function, "_jitload_facts", {})
    is_set = {"grid": 1, "block": 5}  # positions in the configuration of `f[grid, block]`
    if missing := [field for field in facts.get("needs", ()) if not function._jitload_config[is_set[field]]]:
        key = "grid" if "triton" in facts else "grid, block"
        raise LaunchSpecError(
            f"it has no {' and '.join(missing)}, and calls from torch and JAX cannot pass any",
            kernel=facts["name"],
            hint=f"Declare what is missing in its Launch, or pass the function with it: mod.{facts['name']}[{key}]",
        )


def _devices(archs: Sequence[str]) -> str:
    kinds = dict.fromkeys("CPU" if arch == "cpu" else "CUDA" for arch in archs)
    return " or ".join(sorted(kinds, reverse=True))


def _read_arguments(function: str, facts: Mapping[str, Any]) -> Iterator[Argument]:
    parameters = {p["name"]: p for p in facts.get("kernel", {}).get("parameters", ())}
    for index, record in enumerate(facts["arguments"]):
        name, cpp_type = record["name"], record["type"]
        if record["kind"] != "pointer":
            schema_type = _schema_type(function, record)
            kind: Literal["int", "other"] = "int" if schema_type in ("SymInt", "bool") else "other"
            yield Argument(name, kind, f"{schema_type} {_schema_name(name, index)}", cpp_type)
            continue
        if is_pointer_to_pointer(cpp_type):
            raise _no_type(function, record, "points to addresses, and torch does not see the tensors behind them")
        dtype = parameters[name]["dtype"] if name in parameters else describe_type(cpp_type).dtype
        types = [variant[index] for variant in facts.get("variant_types", [])] or [(cpp_type, dtype)]
        flags = {f"is_{flag}": record.get(flag, False) for flag in ("nullable", "strided", "host")}
        flags["is_written"] = not all(is_read_only(text) for text, _ in types)
        schema_type = f"Tensor{f'(a{index}!)' * flags['is_written']}{'?' * flags['is_nullable']}"
        declaration = f"{schema_type} {_schema_name(name, index)}"
        yield Argument(name, "tensor", declaration, cpp_type, dtypes=tuple(dtype for _, dtype in types), **flags)


def _schema_name(name: str, index: int) -> str:
    """Return an argument's name for a schema. Schemas allow only ASCII names."""
    return name if name.isascii() else f"arg{index}"


def _schema_type(function: str, record: Mapping[str, Any]) -> str:
    if record["kind"] in _SCHEMA_TYPES:
        return _SCHEMA_TYPES[record["kind"]]
    if vector := _VECTOR.match(record.get("layout", "")):
        return "float[]" if vector[1] in ("f", "r") else "SymInt[]"
    problem = "is a structure" if record["kind"] == "struct" else "has a type that the compiler did not report"
    raise _no_type(function, record, f"{problem}, for which torch has no type")


def _no_type(function: str, record: Mapping[str, Any], problem: str) -> LaunchSpecError:
    hint = f"Pass numbers or tensors instead, or {_PYTHON_FUNCTION}"
    return LaunchSpecError(f"argument {record['name']!r} ({record['type']}) {problem}", kernel=function, hint=hint)
