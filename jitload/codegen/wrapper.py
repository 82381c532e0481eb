"""Writes the wrapper of a library: the record of its kernels, and the C++ that embeds it and exports functions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from jitload.codegen.kernel import (
    bounds_array,
    describe_choices,
    kernel_members,
    param_structures,
    pointer_flags,
    requirements_of,
    variants_of,
)
from jitload.codegen.record import MODULE, Address, RecordWriter, Struct
from jitload.model import CpuProgram, Cubin, Kernel, Parameter, Variable
from jitload.request.launch import Launch
from jitload.request.request import RECORD_FILE
from jitload.request.variants import groups
from jitload.signature.exports import Export, choose_exports, join_exports
from jitload.toolchain.arch import CPU, capability_of, is_ptx

if TYPE_CHECKING:
    from jinja2 import Template

    from jitload.expressions.compiler import Op
    from jitload.model import CompiledSource
    from jitload.request.request import Request

_FACTS_FILE = "wrapper.json"
_CPU_MODES = {"JITLOAD_CPU_LOOP": 0, "JITLOAD_CPU_FIBERS": 1, "JITLOAD_CPU_SINGLY": 2}


class Wrapper(NamedTuple):
    """The data for a library's C++ wrapper: generated code that exports the library's functions.

    If `has_cpp` is true, the library also contains the user's own C++ code with further exports. `cpus` has the CPU's
    code of each group of exports, or nothing. `bounds` has the checks of accesses by the group, the symbol and the
    launch of a kernel. `images` are the cubins and PTX, each with its group of exports.
    """

    name: str
    archs: tuple[str, ...]
    images: tuple[tuple[Cubin, int], ...]
    exports: tuple[Export, ...]
    variables: tuple[Variable, ...]
    cpus: tuple[CpuProgram, ...] = ()
    has_cpp: bool = False
    bounds: Mapping[tuple[int, str, Launch], Sequence[tuple[Op, ...]]] = MappingProxyType({})


def write_sources(
    request: Request, compiled: Sequence[Sequence[CompiledSource]], work_dir: Path, cpus: Sequence[CpuProgram] = ()
) -> None:
    """Write the record of a library. Also write the source, the cubins and the PTX for people to inspect.

    Args:
        request: The request, with the launches of all variants.
        compiled: For each part of the request that was compiled separately, the code for each GPU.
        work_dir: The directory to write to.
        cpus: For each part, the code for the CPU, or nothing.
    """
    parts, sources = groups(request), [[*codes] for codes in compiled]
    for codes, cpu in zip(sources, cpus, strict=False):
        codes.append(cpu.compiled)
    exports = [
        export
        for group, (part, (first, *others)) in enumerate(zip(parts, sources, strict=True))
        for export in choose_exports(part.functions, first, others, group)
    ]
    wrapper = Wrapper(
        name=request.name,
        archs=(*(code.cubin.arch for code in compiled[0]), *((CPU,) if cpus else ())),
        images=tuple((code.cubin, group) for group, codes in enumerate(compiled) for code in codes),
        exports=join_exports(_in_order(exports, request)),
        variables=sources[0][0].cubin.variables,
        cpus=tuple(cpus),
        bounds=_common_bounds(exports, compiled, checks_all=request.settings.checks_bounds),
    )
    for number, (_, text) in enumerate(request.pieces):
        (work_dir / f"source{number}.cu").write_text(text, encoding="utf-8", newline="")
    write_record_files(wrapper, work_dir)


def _common_bounds(
    exports: Sequence[Export], compiled: Sequence[Sequence[CompiledSource]], *, checks_all: bool
) -> dict[tuple[int, str, Launch], list[tuple[Op, ...]]]:
    """Return the checks of accesses that the code for all architectures makes."""
    result = {}
    for export in exports:
        if checks_all or export.launch.bounds:
            key = export.group, export.kernel.symbol, export.launch
            group, symbol, _ = key
            first, *others = [code.bounds.get(symbol, ()) for code in compiled[group]] or [()]
            result[key] = [check for check in first if all(check in other for other in others)]
    return result


def _write_image(cubin: Cubin, group: int, work_dir: Path) -> None:
    """Write a cubin and its PTX for people to inspect."""
    stem = f"{cubin.arch}_{group}" if group else cubin.arch
    (work_dir / f"{stem}.{'ptx' if is_ptx(cubin.arch) else 'cubin'}").write_bytes(cubin.data)
    if cubin.ptx:
        (work_dir / f"{stem}.ptx").write_text(cubin.ptx, encoding="utf-8", newline="")


def _in_order(exports: Sequence[Export], request: Request) -> Sequence[Export]:
    """Return exports with the variants of a function in the order of the request."""
    if request.functions is None:
        return exports
    order = {pair: number for number, pair in enumerate(request.functions)}
    return sorted(exports, key=lambda export: order[export.name, export.launch])


def write_record_files(wrapper: Wrapper, work_dir: Path) -> None:
    """Write the record of a library, what `write_wrapper` needs, and the images for people to inspect.

    Raises:
        LaunchSpecError: A launch does not match its kernel.
    """
    record = RecordWriter().write(_module_structure(wrapper))
    kernels = [kernel for export in wrapper.exports for kernel in export.leaves]
    facts = {
        "exports": [export.name for export in wrapper.exports],
        "hosts": [kernel.kernel.symbol for kernel in kernels if kernel.returns],
        "addresses": record.addresses,
        "record": RECORD_FILE,
        "cpu": _cpu_part(wrapper),
    }
    (work_dir / RECORD_FILE).write_bytes(record.data)
    (work_dir / _FACTS_FILE).write_text(to_json(facts), encoding="utf-8")
    for cubin, group in wrapper.images:
        _write_image(cubin, group, work_dir)


def write_wrapper(work_dir: Path) -> None:
    """Write the C++ of the wrapper that embeds the record in a directory."""
    facts = json.loads((work_dir / _FACTS_FILE).read_text(encoding="utf-8"))
    (work_dir / "wrapper.cc").write_text(load_template().render(wrapper=facts), encoding="utf-8")


def _cpu_part(wrapper: Wrapper) -> dict[str, Any] | None:
    if not wrapper.cpus:
        return None
    programs = [program for cpu in wrapper.cpus for program in (cpu, cpu.separate) if program]
    shared = dict.fromkeys(symbol for program in programs for symbol in program.dynamic_shared)
    tables = [program.table for program in programs]
    return {"dynamic_shared": [*shared], "variables": _cpu_symbols(wrapper), "tables": tables}


def _module_structure(wrapper: Wrapper) -> Struct:
    symbols = _cpu_symbols(wrapper)
    variables = [
        Struct(
            "variable",
            {
                "name": variable.name,
                "symbol": variable.symbol,
                "on_cpu": Address(f"variable_{number}") if symbols else None,
            },
        )
        for number, variable in enumerate(wrapper.variables)
    ]
    return Struct(
        "module",
        {
            "name": wrapper.name,
            "images": [_image_structure(cubin, group) for cubin, group in wrapper.images],
            "kernels": _kernel_structures(wrapper),
            "variables": variables,
            "description": describe(wrapper),
            "has_cpu": int(bool(wrapper.cpus)),
        },
    )


def _image_structure(cubin: Cubin, group: int) -> Struct:
    number, suffix = capability_of(cubin.arch)
    members = {"capability": number, "suffix": ord(suffix or "\0"), "is_ptx": int(is_ptx(cubin.arch))}
    return Struct("image", {**members, "group": group, "data": cubin.data})


def _cpu_symbols(wrapper: Wrapper) -> list[str]:
    """Return the symbols of the variables in the code for the CPU as C literals, or [] if there is no such code."""
    if not wrapper.cpus:
        return []
    symbols = wrapper.cpus[0].variables
    return [c_string(symbols.get(variable.name, variable.symbol)) for variable in wrapper.variables]


def describe(wrapper: Wrapper) -> str:
    """Return a library's functions and variables as JSON text for the loader."""
    functions = [_describe_function(export) for export in wrapper.exports]
    for function, export in zip(functions, wrapper.exports, strict=True):
        if variants := variants_of(export):
            indices = [*map(id, _all_kernels(wrapper.exports)[0])]
            # A call of a Triton kernel is explained with the position of the variant, and not with its index.
            positions = (n if export.facts else indices.index(id(leaf)) for n, leaf in enumerate(export.leaves))
            function["tune"] = describe_choices(dict(zip(positions, variants, strict=True)))
    variables = [variable._asdict() for variable in wrapper.variables]
    facts = {"name": wrapper.name, "archs": wrapper.archs, "functions": functions, "variables": variables}
    copies = max((group + 1 for _, group in wrapper.images), default=max(1, len(wrapper.cpus)))
    more = {"has_cpp": wrapper.has_cpp, "copies": copies if copies > 1 else 0}
    return to_json({**facts, **{name: value for name, value in more.items() if value}})


def _describe_function(export: Export) -> dict[str, Any]:
    """Return one function's entry in a library's JSON text."""
    by_dtypes = () if export.choice or export.facts else export.variants
    launches = [leaf.launch for leaf in export.leaves]
    nullable = {name: {"nullable": True} for launch in launches for name in launch.nullable}
    needs = [field for field in ("grid", "block") if any(getattr(launch, field) is None for launch in launches)]
    requires = {(*requirements_of(launch),) for launch in launches}  # variants may require different things
    optional = {
        "variants": [variant.signature for variant in by_dtypes],
        "variant_types": [[(a.type, a.dtype) for a in variant.arguments] for variant in by_dtypes],
        "requires": [*requires.pop()] if len(requires) == 1 else [],
        "needs": [] if export.returns else needs,
        "dynamic_shared": str(export.launch.shared_bytes or ""),
        "has_stream": any(p.kind == "stream" for p in export.kernel.parameters),
        "builds": {arch: _resources(kernel) for arch, kernel in export.builds},
    }
    return {
        "name": export.name,
        "doc": export.doc,
        "signature": export.signature,
        "arguments": [_argument_record(p, export.launch) | nullable.get(p.name, {}) for p in export.arguments],
        **({"returns": export.returns} if export.returns else {"kernel": export.kernel.as_dict()}),
        **{name: value for name, value in optional.items() if value},
        **export.facts,
    }


def _resources(kernel: Kernel) -> dict[str, int | None]:
    names = ("registers", "shared_bytes", "local_bytes", "max_threads", "spill_bytes", "barriers")
    return {name: getattr(kernel, name) for name in names}


def _argument_record(parameter: Parameter, launch: Launch) -> dict[str, Any]:
    record = {"name": parameter.name, "kind": parameter.kind, "type": parameter.type}
    if parameter.layout.startswith("="):
        record["layout"] = parameter.layout
    return {**record, **dict.fromkeys(pointer_flags(parameter, launch), True)}


def to_json(record: Mapping[str, Any]) -> str:
    """Return a library's description as JSON text."""
    return json.dumps(record, separators=(",", ":"))


@cache
def load_template() -> Template:
    """Return the parsed template of a wrapper."""
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
    return environment.get_template("wrapper.cc.jinja")


def c_string(text: str) -> str:
    """Return a C string literal, with octal escapes for `?` and for everything except printable ASCII."""
    escaped = re.sub(rb"[^ -~]|\?", lambda match: b"\\%03o" % match[0][0], text.encode().replace(b"\\", b"\\\\"))
    return '"' + escaped.replace(b'"', b'\\"').decode("ascii") + '"'


# ---- one export ------------------------------------------------------------------------------------------------


def _all_kernels(exports: Sequence[Export]) -> tuple[list[Export], list[int]]:
    """Return all kernels: first the exported functions, then their variants. Also return where those of each begin."""
    kernels, firsts = [*exports], []
    for export in kernels:  # grows meanwhile
        firsts.append(len(kernels))
        kernels += export.variants
    return kernels, firsts


def _kernel_structures(wrapper: Wrapper) -> list[Struct]:
    """Return the structures of all kernels."""
    kernels = []
    for index, (export, first) in enumerate(zip(*_all_kernels(wrapper.exports), strict=True)):
        dispatcher: dict[str, object] = {"index": index}
        if export.variants:
            dispatcher |= {"first_variant": first, "variant_count": len(export.variants)}
        cpu = wrapper.cpus[export.group] if wrapper.cpus else None
        if checks := wrapper.bounds.get((export.group, export.kernel.symbol, export.launch)):
            dispatcher["bounds"] = bounds_array(checks, export)
        kernels.append(_kernel_structure(export, cpu, dispatcher))
    return kernels


def _kernel_structure(export: Export, cpu: CpuProgram | None, more: Mapping[str, object]) -> Struct:
    """Return an export's structure. If `cpu` is given, add the export's kernel for the CPU."""
    members = {**kernel_members(export), "module": MODULE, **more}
    if cpu is None or export.returns:
        return Struct("kernel", members)
    kernel = cpu.kernels[export.kernel.symbol]
    on_cpu = {
        "cpu": Address(f"&{cpu.table}[{kernel.row}]"),
        "cpu_mode": _CPU_MODES[kernel.mode],
        "max_threads": kernel.max_threads,
        "params": param_structures(
            export, {p.name: ["on_cpu"] for p in export.kernel.parameters if p.kind == "pointer"}
        ),
    }
    separate = cpu.separate.kernels[export.kernel.symbol] if cpu.separate else None
    steps = cpu.separation.get(export.kernel.name)
    if cpu.separate and separate and steps and {kernel.mode, separate.mode} == {"JITLOAD_CPU_LOOP"}:
        on_cpu |= {
            "separate": Address(f"&{cpu.separate.table}[{separate.row}]"),
            "bounds": bounds_array([steps], export),
        }
    return Struct("kernel", {**members, **on_cpu})
