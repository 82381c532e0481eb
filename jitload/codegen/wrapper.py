"""Writes the wrapper of a library: C++ that exports functions, evaluates launch expressions and launches kernels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jitload.errors import LaunchSpecError
from jitload.expressions.compiler import ScopeEntry, compile_expression
from jitload.model import CpuProgram, Kernel, Parameter, Variable
from jitload.request.launch import Launch, extent_axes
from jitload.signature.exports import Export, choose_exports
from jitload.signature.types import is_complex, is_pointer_to_pointer
from jitload.toolchain.arch import CPU, capability_of

if TYPE_CHECKING:
    from jinja2 import Template

    from jitload.model import CompiledSource
    from jitload.request.request import Request

_DTYPES = (
    "int", "uint", "float", "bfloat", "complex", "bool", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip
_DTYPE_CODES = {name: f"JITLOAD_DL_{name.upper()}" for name in _DTYPES}
_DTYPE = re.compile(r"(u?int|bfloat|float|complex)(\d+)$")
# For names with these prefixes, the symbol __tvm_ffi_<name> has a meaning of its own in tvm-ffi or in jitload.
_RESERVED = ("_jitload_", "_metadata_", "_doc_", "_cubin_", "_library_")
# Host functions have these flags, so that their calls pass neither grid nor block.
_HOST_FLAGS = ("JITLOAD_HAS_GRID", "JITLOAD_HAS_BLOCK")
# The fields of a Launch that name pointers: the key in a library's description, and the flag in jitload/launch.h.
_POINTER_FIELDS = {
    "nullable": ("nullable", "JITLOAD_NULLABLE"),
    "raw_pointers": ("raw", "JITLOAD_RAW"),
    "strided": ("strided", "JITLOAD_STRIDED"),
    "host": ("host", "JITLOAD_HOST"),
}
_SCHEMA_TYPES = {"pointer": "DLTensor*", "int": "int", "uint": "int", "float": "float", "bool": "bool"}


class EmbeddedImage(NamedTuple):
    """A cubin in a library. `name` is the cubin's symbol without tvm-ffi's prefix."""

    name: str
    file: str
    arch: str

    @property
    def target(self) -> str:
        """The architecture as two C constants: `90, 'a'` for `sm_90a`, and `90, 0` for `sm_90`."""
        number, suffix = capability_of(self.arch)
        return f"{number}, '{suffix}'" if suffix else f"{number}, 0"


class Wrapper(NamedTuple):
    """The data for a library's C++ wrapper: generated code that exports the library's functions.

    If `has_cpp` is true, the library also contains the user's own C++ code with further exports.
    """

    name: str
    archs: tuple[str, ...]
    images: tuple[EmbeddedImage, ...]
    exports: tuple[Export, ...]
    variables: tuple[Variable, ...]
    cpu: CpuProgram | None = None
    has_cpp: bool = False


def write_sources(
    request: Request, compiled: Sequence[CompiledSource], work_dir: Path, cpu: CpuProgram | None = None
) -> tuple[str, ...]:
    """Write a library's cubins and its wrapper. Also write the source and the PTX for people to inspect.

    Returns:
        The names of the cubins' files.
    """
    images = []
    for code in compiled:
        arch = code.cubin.arch
        image = EmbeddedImage(re.sub(r"\W", "_", f"{request.slug}_{arch}"), f"{arch}.cubin", arch)
        images.append(image)
        (work_dir / image.file).write_bytes(code.cubin.data)
        if code.cubin.ptx:
            (work_dir / f"{arch}.ptx").write_text(code.cubin.ptx, encoding="utf-8", newline="")
    first, *others = compiled if cpu is None else (*compiled, cpu.compiled)
    wrapper = Wrapper(
        name=request.name,
        archs=(*(code.cubin.arch for code in compiled), *((CPU,) if cpu else ())),
        images=tuple(images),
        exports=choose_exports(request.functions, first, others),
        variables=first.cubin.variables,
        cpu=cpu,
    )
    for number, (_, text) in enumerate(request.pieces):
        (work_dir / f"source{number}.cu").write_text(text, encoding="utf-8", newline="")
    (work_dir / "wrapper.cc").write_text(render_wrapper(wrapper), encoding="utf-8")
    return tuple(image.file for image in images)


def render_wrapper(wrapper: Wrapper) -> str:
    """Return the C++ text of a library's wrapper.

    Raises:
        LaunchSpecError: A launch does not match its kernel.
    """
    cpu_symbols = wrapper.cpu.variables if wrapper.cpu else {}
    record = {
        "name": comment(wrapper.name),
        "quoted_name": c_string(wrapper.name),
        "images": wrapper.images,
        "variables": [
            {
                "name": c_string(variable.name),
                "symbol": c_string(variable.symbol),
                "cpu_symbol": c_string(cpu_symbols.get(variable.name, variable.symbol)),
            }
            for variable in wrapper.variables
        ],
        "kernels": _kernel_records(wrapper),
        "exports": [export.name for export in wrapper.exports],
        "cpu": wrapper.cpu,
        "description": c_string(describe(wrapper)),
    }
    return load_template("wrapper.cc.jinja").render(wrapper=record)


def describe(wrapper: Wrapper) -> str:
    """Return a library's functions and variables as JSON text for the loader."""
    functions = [describe_function(export) for export in wrapper.exports]
    variables = [asdict(variable) for variable in wrapper.variables]
    facts = {"name": wrapper.name, "archs": wrapper.archs, "functions": functions, "variables": variables}
    return to_json({**facts, **({"has_cpp": True} if wrapper.has_cpp else {})})


def describe_function(export: Export) -> dict[str, Any]:
    """Return one function's entry in a library's JSON text."""
    launches = [variant.launch for variant in export.variants or (export,)]
    needs = [field for field in ("grid", "block") if any(getattr(launch, field) is None for launch in launches)]
    variants = {
        "variants": [variant.signature for variant in export.variants],
        "variant_types": [[(a.type, a.dtype) for a in variant.arguments] for variant in export.variants],
    }
    return {
        "name": export.name,
        "doc": export.doc,
        "signature": export.signature,
        "arguments": [_argument_record(p, export.launch) for p in export.arguments],
        **(variants if export.variants else {}),
        **({"returns": export.returns} if export.returns else {"kernel": asdict(export.kernel)}),
        **({"needs": needs} if needs and not export.returns else {}),
        **({"dynamic_shared": str(export.launch.shared_bytes)} if export.launch.shared_bytes else {}),
        **({"has_stream": True} if any(p.kind == "stream" for p in export.kernel.parameters) else {}),
        **({"builds": {arch: _resources(kernel) for arch, kernel in export.builds}} if export.builds else {}),
    }


def _resources(kernel: Kernel) -> dict[str, int | None]:
    names = ("registers", "shared_bytes", "local_bytes", "max_threads", "spill_bytes")
    return {name: getattr(kernel, name) for name in names}


def _argument_record(parameter: Parameter, launch: Launch) -> dict[str, Any]:
    record = {"name": parameter.name, "kind": parameter.kind, "type": parameter.type}
    if parameter.layout.startswith("="):
        record["layout"] = parameter.layout
    keys = (key for field, (key, _) in _POINTER_FIELDS.items() if parameter.name in getattr(launch, field))
    return {**record, **dict.fromkeys(keys, True)}


def to_json(record: Mapping[str, Any]) -> str:
    """Return a library's description as JSON text."""
    return json.dumps(record, separators=(",", ":"))


@lru_cache(maxsize=4)
def load_template(name: str) -> Template:
    """Return a parsed template."""
    import jinja2

    package = Path(__file__).parents[1]
    environment = jinja2.Environment(
        # The templates are inside the package in a wheel, and beside it in a checkout.
        loader=jinja2.FileSystemLoader([package / "templates", package.parent / "templates"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  the text is C++; the user's texts are escaped by `c_string`
    )
    return environment.get_template(name)


def c_string(text: str) -> str:
    """Return a C string literal, with octal escapes for `?` and for everything except printable ASCII."""
    escaped = re.sub(rb"[^ -~]|\?", lambda match: b"\\%03o" % match[0][0], text.encode().replace(b"\\", b"\\\\"))
    return '"' + escaped.replace(b'"', b'\\"').decode("ascii") + '"'


def comment(text: str) -> str:
    """Return text that can stand in a line comment: printable ASCII without backslashes."""
    return re.sub(r"[^ -\[\]-~]", "?", text)


# ---- one export ------------------------------------------------------------------------------------------------


def _kernel_records(wrapper: Wrapper) -> list[dict[str, Any]]:
    """Return the template's records of all kernels: first the exported functions, then their variants."""
    records = [_export_record_for(export, wrapper.cpu) for export in wrapper.exports]
    for record, export in zip(tuple(records), wrapper.exports, strict=True):
        if export.variants:
            record |= {"first_variant": len(records), "variant_count": len(export.variants)}
            record["flags"] = join_flags([record["flags"], "JITLOAD_DISPATCHES"])
        for number, variant in enumerate(export.variants):
            records.append({**_export_record_for(variant, wrapper.cpu), "id": f"{export.name}__variant{number}"})
    return records


def _export_record_for(export: Export, cpu: CpuProgram | None) -> dict[str, Any]:
    """Return an export's record for the wrapper's template. If `cpu` is given, add the export's kernel for the CPU."""
    record = export_record(export)
    if cpu is None:
        return {**record, "cpu": None}
    for parameter, parameter_record in zip(export.kernel.parameters, record["params"], strict=True):
        if parameter.kind == "pointer":
            parameter_record["flags"] = join_flags([parameter_record["flags"], "JITLOAD_ON_CPU"])
    return {**record, "cpu": cpu.kernels[export.kernel.symbol]}


def export_record(export: Export, constants: Mapping[str, ScopeEntry] | None = None) -> dict[str, Any]:
    """Return an export's record for the templates. Launch expressions may use parameters and `constants`."""
    _check_names(export)
    arguments = export.arguments
    positions = {p.name: number for number, p in enumerate(arguments)}
    expressions, plan = compile_plan(export, {**(constants or {}), **make_scope(export, positions)})
    structs = sum((p.size + 63) // 64 * 64 for p in arguments if p.kind == "struct")
    return {
        "id": export.name,
        "name": export.name,
        "quoted_name": c_string(export.name),
        "comment": comment(str(export.kernel)),
        "symbol": "NULL" if export.returns else c_string(export.kernel.symbol),
        "host": export.kernel.symbol if export.returns else "",
        "params": [_param_record(p, export.launch, positions.get(p.name, -1)) for p in export.kernel.parameters],
        "argument_count": len(arguments),
        "expressions": [c_string(text) for text in expressions],
        "plan": plan,
        "flags": join_flags((*_kernel_flags(export.launch), *(_HOST_FLAGS if export.returns else ()))),
        "priority": export.launch.priority or 0,
        "struct_bytes": structs + 64 if structs else 0,
        "metadata": c_string(_metadata(arguments)),
        "doc": c_string(export.doc),
        "first_variant": 0,
        "variant_count": 0,
    }


def _check_names(export: Export) -> None:
    """Raise LaunchSpecError if an export's name is reserved, or if its `Launch` names unsuitable parameters."""
    if reserved := next(filter(export.name.startswith, _RESERVED), None):
        hint = f'Export it under another name: functions={{"f": Launch(kernel="{export.kernel.name}")}}'
        problem = f"{export.name!r} cannot be exported, because names that begin with {reserved!r} are reserved"
        raise LaunchSpecError(problem, field="functions", hint=hint)
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


def _param_record(parameter: Parameter, launch: Launch, argument: int) -> dict[str, Any]:
    code, bits = dtype_code(parameter.dtype)
    flags = [flag for field, (_, flag) in _POINTER_FIELDS.items() if parameter.name in getattr(launch, field)]
    if parameter.kind == "pointer":
        flags += ["JITLOAD_COMPLEX"] if is_complex(parameter.type) else []
        flags += ["JITLOAD_ADDRESSES"] if is_pointer_to_pointer(parameter.type) else []
    return {
        "name": c_string(parameter.name), "type": c_string(parameter.type), "argument": argument,
        "size": parameter.size, "alignment": parameter.alignment, "kind": f"JITLOAD_{parameter.kind.upper()}",
        "flags": join_flags(flags), "dtype_code": code, "dtype_bits": bits,
        "layout": c_string(parameter.layout) if parameter.layout else "NULL",
    }  # fmt: skip


def dtype_code(dtype: str | None) -> tuple[str, int]:
    """Return the C name of a dtype's DLPack type code, and the number of bits.

    None means any dtype. Its number of bits is 0.
    """
    if dtype is None:
        return "0", 0
    if dtype in _DTYPE_CODES:
        return _DTYPE_CODES[dtype], 8
    match = _DTYPE.fullmatch(dtype)
    assert match is not None, dtype
    return _DTYPE_CODES[match[1]], int(match[2])


def join_flags(flags: Iterable[str]) -> str:
    """Return a C expression that joins flags with `|`. A flag may itself contain `|`."""
    return " | ".join(flag for flag in flags if flag != "0") or "0"


def _kernel_flags(launch: Launch) -> list[str]:
    flags = {
        "JITLOAD_HAS_GRID": launch.grid is not None,
        "JITLOAD_HAS_BLOCK": launch.block is not None,
        "JITLOAD_HAS_CLUSTER": launch.cluster is not None,
        "JITLOAD_IS_COOPERATIVE": launch.cooperative,
        "JITLOAD_IS_PDL": launch.pdl,
        "JITLOAD_HAS_PRIORITY": launch.priority is not None,
        "JITLOAD_COMPUTES": bool(launch.args),
        "JITLOAD_SPREADS": launch.cluster_policy == "spread",
        "JITLOAD_BALANCES": launch.cluster_policy == "load_balancing",
    }
    return [flag for flag, is_set in flags.items() if is_set]


def _metadata(arguments: Iterable[Parameter]) -> str:
    """Return a function's metadata for tvm-ffi as JSON. The schema is flat, so every version of tvm-ffi can read it."""
    types = [{"type": _SCHEMA_TYPES.get(parameter.kind, "ffi.Bytes")} for parameter in arguments]
    schema = {"type": "ffi.Function", "args": [{"type": "None"}, *types]}
    return json.dumps({"type_schema": json.dumps(schema)})


# ---- launch expressions ------------------------------------------------------------------------------------------


class _Assignment(NamedTuple):
    """A value that is computed before a launch.

    Attributes:
        field: The field of the `Launch`, such as `args['n']` or `grid[0]`.
        name: The name of the parameter or field in messages about a call.
        expression: The value: a number, or a launch expression as text.
        target: The C++ variable for the value.
        guard: A member of the C++ struct `jitload_plan`. The value is computed only if this member is true. The guard
            "" means always.
    """

    field: str
    name: str
    expression: int | str
    target: str
    guard: str = ""


def compile_plan(export: Export, scope: Mapping[str, ScopeEntry]) -> tuple[list[str], list[str]]:
    """Return a launch's assignments as texts such as `grid[0] = n`, and the C++ lines that compute the values."""
    assignments = list(_assignments(export))
    codes = [compile_expression(a.expression, scope, kernel=export.name, field=a.field) for a in assignments]
    lines: list[str] = []
    for guard, numbers in groupby(range(len(assignments)), lambda number: assignments[number].guard):
        steps = [(f"e->expression = {n};", f"{assignments[n].target} = {codes[n]};") for n in numbers]
        block = [line for step in steps for line in step]
        lines += [f"if (plan->{guard}) {{", *(f"  {line}" for line in block), "}"] if guard else block
    return [f"{assignment.name} = {assignment.expression}" for assignment in assignments], lines


def _assignments(export: Export) -> Iterator[_Assignment]:
    launch = export.launch
    numbers = {parameter.name: number for number, parameter in enumerate(export.kernel.parameters)}
    for name, text in launch.args.items():
        yield _Assignment(f"args[{name!r}]", name, text, f"plan->values[{numbers[name]}]")
    for field, extent in (("grid", launch.grid), ("block", launch.block), ("cluster", launch.cluster)):
        guard = "" if field == "cluster" else f"needs_{field}"
        for axis, (name, text) in enumerate(extent_axes(field, extent) if extent is not None else ()):
            yield _Assignment(name, name, text, f"plan->{field}[{axis}]", guard)
    if launch.shared_bytes != 0:
        yield _Assignment(
            "shared_bytes", "shared_bytes", launch.shared_bytes, "plan->shared_bytes", "needs_shared_bytes"
        )


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
            computed=f"plan->values[{number}]" if parameter.name in export.launch.args else None,
        )
    return scope
