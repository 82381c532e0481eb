"""Describes kernels for a library's record: their parameters, flags, launch attributes and launch expressions."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from jitload.codegen.record import Address, Struct, constant, flags_of, ops_array
from jitload.element_types import ELEMENT_TYPES
from jitload.errors import LaunchSpecError
from jitload.expressions.compiler import Op, ScopeEntry, compile_expression
from jitload.model import Parameter
from jitload.request.launch import LAUNCH_ATTRIBUTES, Launch, extent_axes
from jitload.request.tma import map_members
from jitload.request.tune import Choice, Variant
from jitload.signature.exports import Export
from jitload.signature.types import is_complex, is_pointer_to_pointer, is_read_only
from jitload.words import Argument, Words

# For names with these prefixes, the symbol __tvm_ffi_<name> has a meaning of its own in tvm-ffi or in jitload.
_RESERVED = ("_jitload_", "_metadata_", "_doc_", "_cubin_", "_library_")
# The fields of a Launch that name pointers, with the flag of such a parameter, which is a key of its description, too.
_POINTER_FIELDS = {"nullable": "nullable", "raw_pointers": "raw", "strided": "strided", "host": "host"}
# For each field that a plan has, its first slot, and the step that skips its values if the call sets them.
_PLAN_SLOTS = {
    "grid": (0, "SKIP_GRID"),
    "block": (3, "SKIP_BLOCK"),
    "cluster": (6, ""),
    "shared_bytes": (9, "SKIP_SHARED"),
}
_TENSOR_STEPS = ("OUTSIDE", "SKIP_IF_INSIDE")  # their operand is a parameter, or -1 for shared memory
_FIRST_VALUE = 10  # the slot of the first parameter
_MAY_BE_ADDRESS = re.compile(r"[iu?](?:8|\d\d+)\*")  # in the layout of a structure
_SCHEMA_TYPES = {"pointer": "DLTensor*", "int": "int", "uint": "int", "float": "float", "bool": "bool"}


def kernel_members(export: Export) -> dict[str, object]:
    """Return the members of an export's structure."""
    _check_names(export)
    arguments = export.arguments
    positions = {p.name: number for number, p in enumerate(arguments)}
    expressions, plan = compile_plan(export, {**export.constants, **make_scope(export, positions)})
    structs = sum((p.size + 63) // 64 * 64 for p in arguments if p.kind == "struct")
    is_host, launch = bool(export.returns), export.launch
    flags = {  # calls of host functions pass neither grid nor block
        "has_grid": launch.grid is not None or is_host,
        "has_block": launch.block is not None or is_host,
        "has_cluster": launch.cluster is not None,
        "computes": bool(launch.args),
        "dispatches": bool(export.variants) and not export.facts,
    }
    return {
        "name": export.name,
        "symbol": None if is_host else export.kernel.symbol,
        "host": Address(f"(const void*){export.kernel.symbol}") if is_host else None,
        "params": param_structures(export),
        "plan": ops_array(plan) if expressions else None,
        "expressions": expressions,
        "attributes": [*_attributes(launch)],
        "argument_count": len(arguments),
        "flags": flags_of(name for name, is_set in flags.items() if is_set),
        "struct_bytes": structs + 64 if structs else 0,
        "choice": choice_structure(export) if export.choice else None,
        "maps": [*map_structures(export)],
        "group": export.group,
        "metadata": _metadata(arguments),
        "doc": export.doc,
        **export.members,
    }


def _check_names(export: Export) -> None:
    """Raise LaunchSpecError if an export's name is reserved, or if its `Launch` names unsuitable parameters."""
    if reserved := next(filter(export.name.startswith, _RESERVED), None):
        python = f'functions={{"f": Launch(kernel="{export.kernel.name}")}}'
        launch = Argument("launch", ("f", export.kernel.name), python=python)
        problem = f"{export.name!r} cannot be exported, because names that begin with {reserved!r} are reserved"
        raise LaunchSpecError(problem, field="functions", hint=Words("Export it under another name: ", launch))
    by_name = {p.name: p for p in export.kernel.parameters}
    if export.launch.host and not export.returns:
        problem = "may be set only for host functions, because a kernel cannot read the memory of the host"
        raise LaunchSpecError(problem, kernel=export.name, field="host")
    for field in ("args", *_POINTER_FIELDS):
        for name in getattr(export.launch, field):
            if name not in by_name:
                hint = f"Its parameters are {', '.join(by_name)}." if by_name else "It has no parameters."
                raise LaunchSpecError(f"there is no parameter {name!r}", kernel=export.name, field=field, hint=hint)
            kind = by_name[name].kind
            if kind not in (("int", "uint", "bool") if field == "args" else ("pointer",)):
                expected = "an integer parameter" if field == "args" else "a pointer"
                raise LaunchSpecError(
                    f"{name!r} ({by_name[name].type}) is not {expected}", kernel=export.name, field=field
                )


def param_structures(export: Export, more: Mapping[str, Sequence[str]] | None = None) -> list[Struct]:
    """Return the structures of a kernel's parameters. `more` are flags by parameter."""
    positions = {p.name: number for number, p in enumerate(export.arguments)}
    return [
        _param_structure(p, export.launch, positions.get(p.name, -1), (more or {}).get(p.name, ()))
        for p in export.kernel.parameters
    ]


def _param_structure(parameter: Parameter, launch: Launch, argument: int, more: Sequence[str]) -> Struct:
    code, bits = dtype_code(parameter.dtype)
    flags = [*pointer_flags(parameter, launch), *more]
    if parameter.kind == "pointer":
        has_map = any(tma.tensor == parameter.name for _, tma in launch.tensor_maps)
        flags += ["complex"] if is_complex(parameter.type) and not has_map else []
        flags += ["addresses"] if is_pointer_to_pointer(parameter.type) else []
        flags += ["read_only"] if is_read_only(parameter.type) else []
    elif parameter.kind == "struct":
        flags += ["addresses"] if _MAY_BE_ADDRESS.search(parameter.layout or "?8*") else []
    members = {
        "name": parameter.name, "type": parameter.type, "argument": argument, "size": parameter.size,
        "alignment": parameter.alignment, "kind": constant(parameter.kind), "flags": flags_of(flags),
        "dtype_code": code, "dtype_bits": bits, "layout": parameter.layout or None,
    }  # fmt: skip
    return Struct("param", members)


def pointer_flags(parameter: Parameter, launch: Launch) -> list[str]:
    """Return the flags of a pointer that a `Launch` sets."""
    flags = [flag for field, flag in _POINTER_FIELDS.items() if parameter.name in getattr(launch, field)]
    return [*flags, "strided"] if parameter.is_tensor_map and "strided" not in flags else flags


def dtype_code(dtype: str | None) -> tuple[int, int]:
    """Return a dtype's DLPack type code and its number of bits. None means any dtype, which has 0 bits."""
    if dtype is None:
        return 0, 0
    bits = re.search(r"\d+", dtype)  # a bool has no number
    return ELEMENT_TYPES[dtype].code, int(bits[0]) if bits else 8


def _attributes(launch: Launch) -> Iterator[Struct]:
    for field, (number, settings) in LAUNCH_ATTRIBUTES.items():
        value = getattr(launch, field)
        if value is not None and (not settings or value in settings):
            setting = settings[value] if settings else value if isinstance(value, int) else 0
            yield Struct("attribute", {"id": number, "value": setting})


def _metadata(arguments: Iterable[Parameter]) -> str:
    """Return a function's metadata for tvm-ffi as JSON. The schema is flat, so every version of tvm-ffi can read it."""
    types = [{"type": _SCHEMA_TYPES.get(parameter.kind, "ffi.Bytes")} for parameter in arguments]
    schema = {"type": "ffi.Function", "args": [{"type": "None"}, *types]}
    return json.dumps({"type_schema": json.dumps(schema)})


# ---- choices by key --------------------------------------------------------------------------------------------------


def variants_of(export: Export) -> list[Variant]:
    """Return what distinguishes the kernels among which an export chooses."""
    return [leaf.launch.tune for leaf in export.leaves if isinstance(leaf.launch.tune, Variant)]


def describe_choices(variants: Mapping[int, Variant]) -> dict[str, Any]:
    """Return variants by their positions, the key that chooses among them, and the digest of the choices' file."""
    choice = next((variant.choice for variant in variants.values() if variant.choice), Choice(()))
    return {
        "variants": {number: {"values": dict(v.values), "dtypes": dict(v.dtypes)} for number, v in variants.items()},
        "key": choice.key,
        "digest": choice.digest,
        **({"measures": True} if choice.measures else {}),
    }


def choice_structure(export: Export) -> Struct:
    """Return the structure of the choice by which an export chooses among its variants."""
    choice, variants = export.choice, [variant.values for variant in variants_of(export)]
    assert choice is not None
    scope = make_scope(export, {p.name: number for number, p in enumerate(export.arguments)})
    program: list[Op] = []
    for number, text in enumerate(choice.key):
        expression = _inline(text, export.launch.args)
        steps = compile_expression(expression, scope, kernel=export.name, field=f"key[{number}]")
        program += [*steps, Op("STORE", _FIRST_VALUE + number)]
    tables = []
    others = [("", *row[1:]) for row in choice.chosen if choice.nearest]  # for a GPU without a table
    for gpu, rows in groupby((*choice.chosen, *others), lambda row: row[0]):
        numbered = [(variants.index(values), *key) for _, key, values in rows]
        numbers = [Struct("number", {"value": number}) for row in numbered for number in row]
        tables.append(Struct("table", {"gpu": gpu, "rows": numbers, "row_count": len(numbered)}))
    members = {
        "program": ops_array(program),
        "expressions": [f"key = {text}" for text in choice.key],
        "tables": tables,
        "key_count": len(choice.key),
        "takes_nearest": choice.nearest is not None,
    }
    return Struct("choice", members)


def _inline(text: str, args: Mapping[str, int | str]) -> str:
    """Return an expression with the expressions of computed parameters in place of their names."""
    for name in reversed([*args]):
        text = re.sub(rf"(?<![\w.]){name}(?!\w)", f"({args[name]})".replace("\\", r"\\"), text)
    return text


def requirements_of(launch: Launch) -> list[tuple[str, str]]:
    """Return the terms that a launch requires, each also with the expressions of computed parameters in it."""
    return [(text, ast.unparse(ast.parse(_inline(text, launch.args), mode="eval"))) for text in launch.requires]


def bounds_array(checks: Sequence[tuple[Op, ...]], export: Export) -> list[Struct]:
    """Return the structures of the checks of accesses, each of which ends with `OUTSIDE`."""
    positions = {p.name: number for number, p in enumerate(export.arguments)}
    arguments = [positions.get(p.name, -1) for p in export.kernel.parameters]
    program = [
        op._replace(operand=arguments[op.operand]) if op.name in _TENSOR_STEPS and op.operand >= 0 else op
        for check in checks
        for op in check
    ]
    return ops_array(program)


# ---- launch expressions ------------------------------------------------------------------------------------------


def compile_plan(export: Export, scope: Mapping[str, ScopeEntry]) -> tuple[list[str], tuple[Op, ...]]:
    """Return a launch's assignments and requirements as texts such as `grid[0] = n`, and the steps for their values.

    A call may set the grid, the block and the shared memory itself. A step before theirs then skips them.
    """
    launch, texts, program = export.launch, list[str](), list[Op]()
    numbers = {parameter.name: number for number, parameter in enumerate(export.kernel.parameters)}

    def compiled(text: int | str, field: str) -> tuple[Op, ...]:
        return compile_expression(text, scope, kernel=export.name, field=field)

    for name, text in launch.args.items():
        texts.append(f"{name} = {text}")
        program += _store(compiled(text, f"args[{name!r}]"), _FIRST_VALUE + numbers[name])
    for text in launch.requires:
        texts.append(f"requires {text}")
        program += (*compiled(text, "requires"), Op("REQUIRE"))
    for field, (slot, guard) in _PLAN_SLOTS.items():
        extent = getattr(launch, field)
        is_unset = extent is None or (field == "shared_bytes" and extent == 0)
        axes = [] if is_unset else extent_axes(field, extent)
        steps = [step for axis, (name, text) in enumerate(axes) for step in _store(compiled(text, name), slot + axis)]
        texts += [f"{name} = {text}" for name, text in axes]
        program += [Op(guard, len(steps)), *steps] if guard and steps else steps
    return texts, tuple(program)


def _store(steps: tuple[Op, ...], slot: int) -> tuple[Op, ...]:
    """Return the steps that compute a value and store it in a slot of the plan."""
    if len(steps) == 1 and steps[0].name == "CONSTANT" and slot < _FIRST_VALUE:
        return (Op("SET", slot, steps[0].value),)
    return (*steps, Op("STORE", slot))


def make_scope(export: Export, positions: Mapping[str, int]) -> dict[str, ScopeEntry]:
    """Return the parameters that a launch's expressions may use, by name.

    `positions` maps the names of passed parameters to the indices of the arguments in a call.
    """
    kinds: dict[str, Any] = {"pointer": "tensor", "int": "int", "uint": "int", "bool": "int"}
    scope = {}
    for number, parameter in enumerate(export.kernel.parameters):
        scope[parameter.name] = ScopeEntry(
            position=positions.get(parameter.name, -1),
            kind=kinds.get(parameter.kind, "other"),
            type=parameter.type,
            computed=number if parameter.name in export.launch.args else None,
            is_nullable=parameter.name in export.launch.nullable,
        )
    return scope


# ---- tensor maps ---------------------------------------------------------------------------------------------------


def map_structures(export: Export) -> Iterator[Struct]:
    """Yield the structure of each tensor map of an export."""
    numbers = {parameter.name: number for number, parameter in enumerate(export.kernel.parameters)}
    for name, tma in export.launch.tensor_maps:
        tensor = numbers[tma.tensor]
        dtype = export.kernel.parameters[tensor].dtype
        assert dtype is not None
        members = map_members(tma, dtype, ELEMENT_TYPES[dtype].size, export.name)
        yield Struct("tensor_map", {"param": numbers.get(name, tensor), "tensor": tensor, **members})
