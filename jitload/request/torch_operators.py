"""Declarations of ATen's operators for the names in a text, copied from the headers of the installed torch.

torch's headers define each operator as a short inline function, whose comment is the operator's schema. A copy of such
a function calls `jitload_torch::call` where torch's calls `at::_ops::…::call`.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jitload.errors import ToolchainError

# Headers that are copied from the installed torch. Where such a header includes others of torch's, its copy includes
# the light headers and the other copies.
FLOAT8 = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
COPIED = (
    "ATen/AccumulateType.h ATen/Dispatch.h ATen/Dispatch_v2.h ATen/cuda/Atomic.cuh "
    "ATen/cuda/CUDAEvent.h ATen/cuda/DeviceUtils.cuh ATen/cuda/NumericLimits.cuh ATen/cuda/detail/KernelUtils.h "
    "c10/cuda/CUDAEvent.h c10/cuda/CUDAMathCompat.h c10/util/TypeSafeSignMath.h c10/util/irange.h "
    "torch/headeronly/core/Dispatch.h torch/headeronly/core/Dispatch_v2.h torch/headeronly/cuda/Atomic.h "
    "torch/headeronly/cuda/AtomicAdd.h torch/headeronly/cuda/KernelUtils.h torch/headeronly/macros/Export.h "
    "torch/headeronly/macros/Macros.h torch/headeronly/macros/cmake_macros.h torch/headeronly/util/Float8_fnuz_cvt.h "
    "torch/headeronly/util/TypeSafeSignMath.h torch/headeronly/util/bit_cast.h "
    "torch/headeronly/util/floating_point_utils.h torch/headeronly/version.h "
) + " ".join(f"c10/util/Float8_{name}.h torch/headeronly/util/Float8_{name}.h" for name in FLOAT8)
# The headers in which `torch/extension.h` declares names of the namespaces torch, at and c10.
_DECLARING = ("c10/*/*.h", "ATen/*.h", "ATen/core/*.h", "torch/csrc/autograd/*.h", "torch/csrc/api/include/**/*.h")
_CALL = re.compile(r"(?:\.|->|::)\s*(?:template\s+)?([a-z_]\w*)\s*\(")
_UNQUALIFIED_CALL = re.compile(r"(?<![\w:.>])([a-z_]\w*)\s*\(")
_USING_TORCH = re.compile(r"\busing\s+namespace\s+(?:torch|at)\s*;")
_CALL_IN_PART = re.compile(r"\b(linalg|special|fft)\s*::\s*([a-z_]\w*)\s*\(")
_FUNCTION = re.compile(
    r"^// aten::(?P<schema>.+)\ninline (?P<result>[^()]+?) ?(?P<owner>Tensor::)?(?P<name>\w+)\((?P<parameters>.*)\)"
    r"(?: const)? \{\n +return at::_ops::\w+::call\((?P<arguments>.*)\);\n\}$",
    re.MULTILINE,
)
_SCHEMA = re.compile(r"(?P<name>\w+)(?:\.(?P<overload>\w+))?\((?P<parameters>.*)\) -> (?P<results>.*)")
_VERSION = re.compile(r"#define TORCH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)")
_UNSUPPORTED = re.compile(
    r"Storage|Dimname|Stream|SymInt|SymBool|MTLCommandBuffer|List<|QScheme|at::Layout \w|const at::Tensor \*"
)
# The types of torch's headers as the light headers write them.
_TYPES = (
    (re.compile(r"(\w+)\.has_value\(\) \? ::std::make_optional\([\w:]+\(\*\1\)\) : ::std::nullopt"), r"\1"),
    (re.compile(r"::?std::optional|std::optional"), "OptionalArg"),
    (re.compile(r"::std::(?=tuple|vector)"), "std::"),
    (re.compile(r"::?std::array<bool,\d>"), "ArrayRef<bool>"),
    (re.compile(r"::std::nullopt"), "{}"),
    (re.compile(r"(?:c10::|::?std::)?\bstring_view\b"), "TextArg"),
    (re.compile(r"\bat::(?!Reduction)"), ""),
    (re.compile(r"\bc10::(?=MemoryFormat|Scalar\b|Device\b|Layout\b|ArrayRef)"), ""),
)
_SUPPORTED_RESULT = re.compile(
    r"(?:const )?Tensor ?&?|bool|int64_t|double|void|ScalarType|Scalar"
    r"|std::(?:tuple|vector)<Tensor ?&?(?:,Tensor ?&?)*>"
)
_LETTERS = {"Tensor": "t", "Tensor[]": "v", "bool": "b", "float": "d", "int": "i", "SymInt": "i", "Scalar": "s"}
_LETTERS["ScalarType"] = "c"
_ALIAS = re.compile(r"\([\w|]+(?: -> \*)?(!?)\)")
# Operators for which torch has functions of C.
_SHORTCUTS = {"empty.memory_format": "e", "zeros": "z", "full": "f", "fill_.Scalar": "s"}
# Overloads that torch's headers define by hand, so that an integer is a dimension and not the flag `unbiased`.
_WITH_DIMENSION = ("std", "var", "std_mean", "var_mean")
# Methods and functions that the light headers define themselves.
_OWN_METHODS = frozenset(
    (  # noqa: SIM905  a list of words
        "contiguous cpu cuda data dim element_size get_device index index_put_ is_complex is_contiguous is_cpu is_cuda "
        "is_floating_point is_meta is_quantized is_signed is_sparse item itemsize nbytes ndimension numel options "
        "requires_grad size sizes stride strides storage_offset type backward is_same requires_grad_ "
        "is_leaf retains_grad retain_grad output_nr _version set_data"
    ).split()
)
_OWN_FUNCTIONS = frozenset(("tensor", "from_blob", "is_complex", "is_floating_point", "manual_seed", "get_num_threads"))


class _Function(NamedTuple):
    """An inline function of torch's headers, with its types as the light headers write them."""

    schema: str
    result: str
    owner: str
    name: str
    parameters: str
    arguments: str


class Declarations(NamedTuple):
    """C++ for the operators that a text names: methods, definitions, and the names of the standard headers needed."""

    methods: list[str]
    functions: list[str]
    headers: set[str]


@functools.lru_cache(maxsize=64)
def operator_declarations(text: str) -> Declarations:
    """Return declarations of the ATen operators that a text calls."""
    parts = {*_CALL_IN_PART.findall(text)}
    unqualified = _UNQUALIFIED_CALL.findall(text) if _USING_TORCH.search(text) else []
    names = sorted({*_CALL.findall(text), *unqualified, *(f"{part}_{name}" for part, name in parts)})
    if not names:
        return Declarations([], [], set())
    methods = [line for name in names if name not in _OWN_METHODS for line in _method_declarations(name)]
    functions = [
        function
        for name in names
        for function in (*_methods(name), *_functions(name))
        if function.name not in (_OWN_METHODS if function.owner else _OWN_FUNCTIONS)
    ]
    definitions = [_definition(function) for function in functions]
    definitions += [_with_dimension(name) for name in _WITH_DIMENSION if name in names]
    # Functions of torch::linalg, torch::special and torch::fft, which are in the namespace at. The declaration
    # `using namespace at` makes them known in the namespace torch.
    definitions += [
        f"namespace {part} {{ {_definition(function._replace(name=name))} }}"
        for part, name in sorted(parts)
        for function in functions
        if function.name == f"{part}_{name}" and not function.owner
    ]
    results = " ".join(function.result for function in functions)
    headers = {header for header in ("tuple", "vector") if f"std::{header}<" in results}
    return Declarations(methods, [*filter(None, definitions)], headers)


@functools.lru_cache(maxsize=1)
def torch_abi() -> str:
    """Return the release of the installed torch as its stable interface expects it, for example `0x020D0000…`."""
    numbers = [int(number) for number in _VERSION.findall(read_header("torch/headeronly/version.h"))]
    if len(numbers) != 3:
        raise ToolchainError("torch/headeronly/version.h does not say the release of torch: install torch again")
    return f"0x{numbers[0]:02X}{numbers[1]:02X}{numbers[2]:02X}0000000000"


def has_stable_interface() -> bool:
    """Return whether the installed torch has the stable C interface that the light headers use (2.10 and newer)."""
    return "torch_call_dispatcher" in read_header("torch/csrc/stable/c/shim.h")


def _methods(name: str) -> Iterator[_Function]:
    text = read_header("ATen/core/TensorBody.h")
    for part in re.finditer(rf" Tensor::{name}\(", text):
        found = _FUNCTION.match(text, text.rfind("// aten::", 0, part.start()))
        if found and (function := _supported(found)):
            yield function


def _functions(name: str) -> Iterator[_Function]:
    root = re.sub(r"_outf?$", "", name)
    text = read_header(f"ATen/ops/{root.rstrip('_') if not root.startswith('__') else root}.h") or read_header(
        f"ATen/ops/{root}.h"
    )
    for match in _FUNCTION.finditer(text):
        if match["name"] == name and (function := _supported(match)):
            yield function


def _method_declarations(name: str) -> Iterator[str]:
    text = read_header("ATen/core/TensorBody.h")
    for part in re.finditer(rf" {name}\(", text):
        declaration = text[text.rfind("\n", 0, part.start()) + 1 : text.find("\n", part.start())].strip()
        is_comment = declaration.startswith("//")
        if declaration.endswith(") const;") and not is_comment and not _UNSUPPORTED.search(declaration):
            yield _translate(declaration)
    if name in _WITH_DIMENSION and not name.endswith("mean"):
        yield f"Tensor {name}(int dim) const;"


@functools.lru_cache(maxsize=256)
def read_header(header: str) -> str:
    """Return the text of one of torch's headers, or "" if torch does not have it."""
    try:
        return (torch_include_dir() / header).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


@functools.lru_cache(maxsize=256)
def is_declared(name: str) -> bool:
    """Return whether a header of torch's declares a class, function or namespace of this name outside of classes."""
    pattern = re.compile(rf"(?m)^(?!template)\w[^(;={{.`\n]*(?<!>::)\b{name}\b(?=\s*(?:[({{;=]|:(?!:)|final\b|$))")
    headers = (path for glob in _DECLARING for path in torch_include_dir().glob(glob))
    return any(name in (text := path.read_text(encoding="utf-8")) and pattern.search(text) for path in headers)


@functools.lru_cache(maxsize=1)
def torch_include_dir() -> Path:
    """Return the directory of torch's headers, without an import of torch."""
    module = sys.modules.get("torch")
    path = module.__file__ if module else (spec := importlib.util.find_spec("torch")) and spec.origin
    directory = Path(path or "").parent / "include"
    if not path or not (directory / "ATen/core/TensorBody.h").is_file():
        raise ToolchainError(
            "C++ that uses torch needs torch's headers, which say what its operators take: pip install 'torch>=2.10'"
        )
    return directory


def _supported(match: re.Match[str]) -> _Function | None:
    """Return the function that was found, or None if it has a type that the light headers lack."""
    result = _translate(match["result"])
    if not match["arguments"] or _UNSUPPORTED.search(match["parameters"]) or not _SUPPORTED_RESULT.fullmatch(result):
        return None
    parameters, arguments = _translate(match["parameters"]), _translate(match["arguments"])
    return _Function(match["schema"], result, match["owner"] or "", match["name"], parameters, arguments)


def _translate(text: str) -> str:
    for pattern, replacement in _TYPES:
        text = pattern.sub(replacement, text)
    return text


def _definition(function: _Function) -> str:
    """Return the C++ of a function that calls an operator."""
    schema = _SCHEMA.fullmatch(function.schema)
    assert schema is not None
    parameters = schema["parameters"].replace("*, ", "").split(", ")
    names = [parameter.split("=")[0].split()[-1] for parameter in parameters[1:]]
    fields = ", ".join(
        f'"{field}"'
        for field in (
            f"aten::{schema['name']}",
            schema["overload"] or "",
            "".join(f"{name} " for name in names),
            _result_letters(schema["results"]),
        )
    )
    shortcut = _SHORTCUTS.get(function.schema.partition("(")[0])
    fields += ", JITLOAD_TORCH_ABI" + (f", false, '{shortcut}'" if shortcut else "")
    result = function.result.replace("const ", "")
    changed = "&" in result
    call = f"jitload_torch::call<{'void' if changed else result}>(op, {function.arguments})"
    if "TensorOptions options" in function.parameters and not function.owner:  # methods do not set requires_grad
        call = f"jitload_torch::with_options({call.replace('(options, ', '(options.requires_grad(false), ')}, options)"
    call = f"{call}; return {_changed(result, function, names)}" if changed else f"return {call}"
    # As in torch, the integers do not depend on the tensor: without this, autograd would look for a derivative.
    call = f"NoGradGuard guard; {call}" if function.name == "randint_like" else call
    const = " const" if function.owner else ""
    return (
        f"inline {function.result} {function.owner}{function.name}({function.parameters}){const} "
        f"{{ static jitload_torch::Operator op{{{fields}}}; {call}; }}"
    )


def _result_letters(results: str) -> str:
    """Return a letter for each result of a schema such as `(Tensor values, Tensor indices)`; see `Results` in C++."""
    types = [part.split()[0] for part in _ALIAS.sub(r"\1", results).strip("()").split(", ") if part]
    return "".join("_" if part.endswith("!") else _LETTERS[part] for part in types)


def _changed(result: str, function: _Function, names: list[str]) -> str:
    """Return the tensors that a function changes and returns, as C++."""
    count = result.count("&")
    if function.owner:
        return "const_cast<Tensor&>(*this)" if count == 1 else "{}"
    first = function.parameters.split(", ")[0].split()[-1]
    outs = names[-count:] if function.name.endswith(("_out", "_outf")) else [first]
    return outs[0] if count == 1 else f"{result}{{{', '.join(outs)}}}"


def _with_dimension(name: str) -> str:
    """Return the definitions of a function, and of a method if there is one, that take a dimension as an int."""
    result = "std::tuple<Tensor,Tensor>" if name.endswith("mean") else "Tensor"
    function = f"inline {result} {name}(const Tensor& self, int dim) {{ return {name}(self, IntArrayRef(dim)); }}"
    if name.endswith("mean"):
        return function
    return f"inline Tensor Tensor::{name}(int dim) const {{ return {name}(IntArrayRef(dim)); }} {function}"
