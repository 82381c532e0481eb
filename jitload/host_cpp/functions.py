"""Exports the host functions that `functions=` names.

A function of plain types, such as `float*` and `int`, gets a wrapper as kernels do. A function that takes or returns
types of tvm-ffi is exported by tvm-ffi's macro.

The compiler reports plain types: at the end of the text, a template (`host_call.h`) deduces the types of a function,
calls the function with arguments from an array of addresses, and leaves the types in the name of a symbol in the object
file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from jitload.candidate import Candidate
from jitload.codegen.wrapper import Wrapper, write_record_files, write_wrapper
from jitload.cpptext.declarations import find_candidates
from jitload.cpptext.host_functions import HostFunction, find_host_functions, is_string
from jitload.cpptext.source_kind import user_headers
from jitload.elf.file import ElfFile
from jitload.errors import LaunchSpecError, SignatureError, nearest_name
from jitload.model import Kernel, Parameter
from jitload.request.launch import Launch
from jitload.request.request import Request, Unit
from jitload.signature.demangle import read_host_probe
from jitload.signature.exports import Export, rename_parameters
from jitload.signature.kernels import packed_parameters, read_kernels
from jitload.signature.probe import kernel_expression
from jitload.words import Argument, Words

CALL_HEADER = "#include <jitload/host_call.h>\n"
_PROBE = b"__jitload_host_probe"
_STREAM = "CUstream_st*"
_MAX_NAMES = 12  # that a message lists
# The Python types of results, indexed by the kinds of results in host_result.h.
_RESULTS = ("", "None", "int", "int", "float", "bool", "None")
_CONVERTED = len(_RESULTS)  # the kind of a function that takes or returns an object of tvm-ffi
_FFI_TEXT = re.compile(r"\btvm\b|TVM_?FFI|\bffi::|\bDL(?:Tensor|Device|DataType|Managed)|dlpack")
# Matches the names of functions that the C++ itself exports with tvm-ffi.
_EXPORTED = re.compile(r"TVM_FFI_DLL_EXPORT_TYPED_FUNC\(\s*(\w+)|\b__tvm_ffi_(?!_)(\w+)")
_OVERLOAD = re.compile(r"static_cast<void\(\*\)\((.*)\)>\((.*)\)")
# Matches what a text that exports functions by itself contains.
_MAY_EXPORT = re.compile(r"TVM_FFI|__tvm_ffi_|tvm::ffi|visibility|\bconstructor\b")
# Match messages of compilers about a name that no text declares.
_UNDECLARED = re.compile(r"identifier \"(\w+)\" is undefined|.(\w+). was not declared in this scope")
_CONVERTED_TYPE = re.compile(r"TypeTraits<(.+?)(?:, void)?>(?:\"? has no member|\W*$)", re.MULTILINE)
# Match messages of cudafe++, cicc and g++ about a name that may mean several functions, and about a type that tvm-ffi
# cannot convert.
_AMBIGUOUS = re.compile(r"no (?:instance of function template|matching function).*__jitload_invoke")
_NOT_CONVERTED = re.compile(
    r"TypeTraits<.*has no member|is not a member of .*TypeTraits<|static assertion failed: The function signature"
)
_FFI_TYPE = re.compile(r"\btvm::ffi::|\bDLTensor\b|\bDLDevice\b|\bDLDataType\b|\bstd::(?!complex|byte)")


_SUPPORTED = (
    "Parameters may be pointers, numbers, bools, enums, cudaStream_t, and vectors and structures that are copied as "
    "bytes. The result may be a number, a bool, cudaError_t or nothing. For tensors with shapes and other objects, "
    "use types of tvm-ffi such as tvm::ffi::TensorView."
)


class HostExport(NamedTuple):
    """A host function to export.

    Attributes:
        name: The function's name in Python.
        launch: The function's `Launch` in `functions=`.
        unit: The name of the source file that exports the function.
        expression: The C++ expression that selects the function.
        candidates: The functions in the source file and its headers that `functions=` may mean.
        is_typed: Whether the function has plain types, such as `float*`. Such a function gets a wrapper. Other
            functions are exported by tvm-ffi's macro.
    """

    name: str
    launch: Launch
    unit: str
    expression: str
    candidates: tuple[Candidate, ...]
    is_typed: bool

    @property
    def text(self) -> str:
        """The C++ text that exports the function."""
        macro = "__JITLOAD_HOST_FUNCTION" if self.is_typed else "TVM_FFI_DLL_EXPORT_TYPED_FUNC"
        return f"{macro}({self.name}, {self.expression});\n"

    @property
    def needs_call_header(self) -> bool:
        """Whether `text` uses `host_call.h`."""
        return self.is_typed or "__jitload_" in self.expression


# ---- before the compile ------------------------------------------------------------------------------------------


def choose_host_exports(request: Request) -> tuple[HostExport, ...]:
    """Return an export for each function that a request names.

    Functions that the text exports by itself are left out.
    """
    host = request.host
    if host is None or not request.functions:
        return ()
    units = {
        unit.file: _functions_of(unit, request.include_dirs) for unit in host.units if not unit.file.endswith(".c")
    }
    # A macro or a header may define a function that appears in no text. Such a function is exported by the text
    # that is not a file, or else by the only file.
    default = next((unit.file for unit in host.units if not unit.is_file), next(iter(units)) if len(units) == 1 else "")
    texts = [text for unit in host.units for _, text in unit.pieces]
    exported = {match[1] or match[2] for text in texts for match in _EXPORTED.finditer(text)}
    has_ffi = any(_FFI_TEXT.search(text) for text in texts)
    return tuple(
        _host_export(name, launch, units, default, is_plain_unseen=not has_ffi)
        for name, launch in request.functions
        if name not in exported
    )


def check_has_exports(request: Request) -> None:
    """Raise LaunchSpecError if nvcc would compile a library without functions.

    The sources and their headers then have no sign of an export, such as a macro of tvm-ffi.
    """
    host = request.host
    if host is None or not host.is_mixed or host.is_torch or host.is_object or request.functions:
        return
    texts = [text for unit in host.units for _, text in unit.pieces]
    flags = [flag for unit in host.units for flag in (*unit.flags, *host.flags)]
    headers = user_headers(texts, [Path(path) for path in request.include_dirs])
    if host.objects or any(_MAY_EXPORT.search(text) for text in (*texts, *flags, *headers)):
        return
    kernels_too = "" if request.is_kind_explicit else ", either kernels or host functions"
    for_kernels = "For kernels, leave kind= out. " if request.is_kind_explicit else ""
    raise LaunchSpecError(
        f"is missing, and {request.name!r} exports nothing by itself: the library would have no functions",
        field="functions",
        hint=f"Name what to call{kernels_too}. {_listed(host.units, request.include_dirs)} {for_kernels}C++ may "
        "also export functions with TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, function).",
    )


def _host_names(units: Iterable[Unit], include_dirs: Sequence[str]) -> tuple[str, ...]:
    functions = (function for unit in units for function in _functions_of(unit, include_dirs))
    return tuple(dict.fromkeys(function.candidate.name for function in functions))


def _kernel_names(units: Iterable[Unit]) -> tuple[str, ...]:
    candidates = find_candidates(tuple(text for unit in units for _, text in unit.pieces))
    return tuple(dict.fromkeys(candidate.name for candidate in candidates))


def _listed(units: Sequence[Unit], include_dirs: Sequence[str]) -> str:
    functions, kernels = _host_names(units, include_dirs), _kernel_names(units)
    return f"The host functions are: {_first_names(functions)}. The kernels are: {_first_names(kernels)}."


def _first_names(names: Collection[str]) -> str:
    """Return the first names, which are those of the sources. Their headers may have hundreds."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(islice(names, _MAX_NAMES)) + more or "none"


def _functions_of(unit: Unit, include_dirs: Sequence[str]) -> tuple[HostFunction, ...]:
    texts = [text for _, text in unit.pieces]
    headers = user_headers(texts, [Path(path) for path in include_dirs]) if any("#include" in t for t in texts) else ()
    return tuple(function for text in (*texts, *headers) for function in find_host_functions(text))


def _host_export(
    name: str, launch: Launch, units: dict[str, tuple[HostFunction, ...]], default: str, *, is_plain_unseen: bool
) -> HostExport:
    """Return the export of a function.

    Args:
        name: The name in `functions=`.
        launch: The `Launch` in `functions=`.
        units: The functions in each source file, by the file's name.
        default: The source file that exports the function if no text contains it; "" if there is no such file.
        is_plain_unseen: Whether to assume plain types if no text contains the function.

    Raises:
        LaunchSpecError: The function cannot be exported.
    """
    target = re.split(r"[<(]", launch.kernel or name)[0].strip()
    if target == "main":
        problem = "main() cannot be exported, because C++ may not call it"
        raise LaunchSpecError(problem, kernel=name, field="functions")
    matches = {file: [f for f in functions if f.candidate.name == target] for file, functions in units.items()}
    if not any(matches.values()):
        suffix = f"::{target.removeprefix('::')}"
        matches = {
            file: [f for f in functions if f"::{f.candidate.name}".endswith(suffix)]
            for file, functions in units.items()
        }
    defined = [file for file, functions in matches.items() if any(f.candidate.is_definition for f in functions)]
    declared = [file for file, functions in matches.items() if functions]
    is_plain = is_plain_unseen
    if declared:
        seen = [function for functions in matches.values() for function in functions]
        is_plain = all(f.is_plain for f in seen)
        if all(f.has_numbers_only for f in seen) and _fields_of(launch) == []:
            is_plain = is_plain and next(iter((*defined, *declared))).endswith(".cu")
    # A function of plain types is exported by the unit that defines it. Any other function is exported by the C++ in
    # cpp_sources if cpp_sources declares it, as in tvm-ffi.
    preferred = (*defined, *declared) if is_plain else (*(f for f in declared if f == default), *defined, *declared)
    unit = next(iter((*preferred, *((default,) if default in units else ()))), "")
    if not unit:
        names = {function.candidate.name: None for functions in units.values() for function in functions}
        suggestion = nearest_name(name, names)
        hint = f"Did you mean {suggestion!r}? " if suggestion else ""
        problem = f"no file defines a host function {target!r}"
        raise LaunchSpecError(problem, field="functions", hint=f"{hint}The host functions are: {_first_names(names)}")
    candidates = _without_declarations(matches.get(unit, ()))
    if not is_plain and (fields := _fields_of(launch)):
        problem = (
            "may be set only for functions of plain types, but this one takes or returns types that tvm-ffi converts"
        )
        hint = "Leave it out, or declare plain types, such as float* and int."
        raise LaunchSpecError(problem, kernel=name, field=fields[0], hint=hint)
    return HostExport(name, launch, unit, _expression(name, launch, candidates), candidates, is_plain)


def _without_declarations(functions: Sequence[HostFunction]) -> tuple[Candidate, ...]:
    """Return the functions. Leave out declarations of functions that are also defined: the definition has the names."""
    candidates = [function.candidate for function in functions]
    defined = {candidate.types for candidate in candidates if candidate.is_definition}
    return tuple(c for c in candidates if c.is_definition or c.types not in defined)


def _expression(name: str, launch: Launch, candidates: Sequence[Candidate]) -> str:
    # A `static_cast` that selects an overload needs the function's result type. `kernel_expression` writes `void`,
    # which is right only for kernels, so a template that deduces the type replaces the `static_cast`.
    if launch.kernel:
        return _OVERLOAD.sub(r"(__jitload_overload<\1>::__jitload_of(\2))", kernel_expression(launch.kernel))
    qualified = {candidate.name for candidate in candidates}
    return qualified.pop() if len(qualified) == 1 else name


def _fields_of(launch: Launch) -> list[str]:
    """Return the names of the fields that are set in a `Launch`, and that only apply to functions of plain types."""
    names = ("params", "args", "requires", "nullable", "raw_pointers", "strided", "host")
    return [name for name in names if getattr(launch, name)]


def export_hint(log: str, exports: Iterable[HostExport], request: Request) -> str:
    """Return advice about a compiler's error in the export of a function, or "" if there is none."""
    export = next((export for export in exports if f"functions['{export.name}']" in log), None)
    if export and not export.candidates and export.expression in {a or b for a, b in _UNDECLARED.findall(log)}:
        return _typo_hint(export.name, request)
    if export and _AMBIGUOUS.search(log):
        name = export.expression
        return (
            f"{name!r} is overloaded, a template, or also the name of a kernel. Say which function is meant: "
            f"functions={{{export.name!r}: Launch(kernel='{name}(float*, int)')}}, or kernel='{name}<float>'."
        )
    if export and _NOT_CONVERTED.search(log):
        named = next(iter(_CONVERTED_TYPE.findall(log)), "a type")
        return f"{export.name!r} takes or returns {named}, which cannot be passed from Python. {_SUPPORTED}"
    return ""


def _typo_hint(name: str, request: Request) -> str:
    units = request.host.units if request.host else ()
    nearest = nearest_name(name, (*_host_names(units, request.include_dirs), *_kernel_names(units)))
    suggestion = f" Did you mean {nearest!r}?" if nearest else ""
    problem = f" has {name!r}, which no source declares.{suggestion} {_listed(units, request.include_dirs)}"
    return Words(Argument("functions"), problem)


def has_typed(exports: Iterable[HostExport]) -> bool:
    """Return whether any of the exported functions has plain types."""
    return any(export.is_typed for export in exports)


def needs_prelude(unit: Unit, exports: Sequence[HostExport]) -> bool:
    """Return whether jitload puts an #include of tvm-ffi's convenience headers in front of a source.

    The user's files do not get the #include. Inline text without kernels always gets it.

    nvcc takes two seconds to read the headers. Inline text with kernels therefore gets the #include only in these
    cases:

    - The text exports no function, or a function whose types are not plain.
    - The text has names of tvm-ffi.
    - The text uses `std::` and has no #include in angle brackets.
    """
    if unit.is_file or not unit.is_mixed or not exports or not all(export.is_typed for export in exports):
        return not unit.is_file
    texts = [text for _, text in unit.pieces]
    has_library_names = any("std::" in text for text in texts) and not any("#include <" in text for text in texts)
    return has_library_names or any(_FFI_TEXT.search(text) for text in texts)


# ---- after the compile -------------------------------------------------------------------------------------------


def read_typed_functions(exports: Sequence[HostExport], objects: Iterable[Path]) -> dict[str, Export | None]:
    """Return the functions of plain types by name. Their types are read from the object files.

    The value is None if the function turns out to have a type that only tvm-ffi can convert.
    """
    symbols = {}
    for path in objects:
        data = path.read_bytes()
        if _PROBE in data:
            for symbol in ElfFile(data).symbols():
                if symbol.name.startswith("_Z20__jitload_host_probe"):
                    symbols[read_host_probe(symbol.name).name] = symbol.name
    return {export.name: _read_function(export, symbols.get(export.name, "")) for export in exports if export.is_typed}


def _read_function(export: HostExport, symbol: str) -> Export | None:
    probe = read_host_probe(symbol)
    types = (probe.result, *probe.types)
    if probe.kind == _CONVERTED or any(_FFI_TYPE.search(type_) or is_string(type_) for type_ in types):
        return None
    _check_is_supported(export.name, probe.result, probe.types, probe.sizes, probe.kind)
    target = re.split(r"[<(]", export.launch.kernel or export.expression)[0].strip().removeprefix("::")
    own_name = target.rpartition("::")[2]
    untyped = Kernel(own_name, own_name, packed_parameters(probe.sizes, probe.alignments), None, None, None, 0)
    (kernel,) = read_kernels([untyped], {target: (own_name, symbol)}, export.candidates)
    parameters = tuple(map(_with_stream, kernel.parameters))
    kernel = kernel._replace(symbol=f"__jitload_call_{export.name}", parameters=parameters)
    kernel = rename_parameters(export.name, kernel, export.launch)
    return Export(export.name, kernel, export.launch, export.launch.doc or "", returns=_RESULTS[probe.kind])


def _with_stream(parameter: Parameter) -> Parameter:
    if parameter.type != _STREAM:
        return parameter
    return parameter._replace(kind="stream", type="cudaStream_t", dtype=None)


def _check_is_supported(name: str, result: str, types: Sequence[str], sizes: Sequence[int], kind: int) -> None:
    problems = [
        *(
            f"parameter {i + 1} has the type {t}"
            for i, (t, size) in enumerate(zip(types, sizes, strict=True))
            if not size
        ),
        *((f"the result has the type {result}",) if not kind else ()),
    ]
    if problems:
        raise SignatureError(
            f"function {name!r}: {problems[0]}, which cannot be passed to or from Python\n"
            f"    {result} {name}({', '.join(types)})\n"
            f"    {_SUPPORTED}"
        )


def write_host_wrapper(request: Request, functions: Iterable[Export], work_dir: Path) -> None:
    """Write the wrapper through which Python calls functions of plain types."""
    wrapper = Wrapper(request.name, request.archs, (), tuple(functions), (), has_cpp=True)
    write_record_files(wrapper, work_dir)
    write_wrapper(work_dir)
