"""Write `jitload/include/torch_light/operators.txt`, the C++ signatures of ATen's operators, from the schemas of the installed torch.

Run it with a release of torch and PyYAML: `python tests/torch_operators.py`. Each line has, separated by tabs: the name
in C++, the schema's name and overload, `f` for a function and `m` for a method, the type of the result, the parameters,
the arguments in the schema's order, those that are passed by keyword with their names, and how torch's C++ function is
called directly: a letter for the type of each argument (`Raw` in `direct.h`), and the types in its mangled name.
Operators with a type that has no letter are left out.
"""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torchgen
from torchgen import local
from torchgen.api import cpp, dispatcher
from torchgen.api.types import CppSignature, CppSignatureGroup
from torchgen.gen import parse_native_yaml
from torchgen.model import NativeFunction, SelfArgument, TensorOptionsArguments, Variant

_TABLE = Path(__file__).parent.parent / "jitload/include/torch_light/operators.txt"
_UNSUPPORTED = re.compile(
    r"Storage|Dimname|Stream|SymInt|MTLCommandBuffer|std::array|List<|ITensorListRef|Layout [a-z]|Tensor&[,>]|QScheme|SymBool"
)
_WITHOUT_TENSORS = ("is_vulkan_available", "sym_constrain_range", "sym_constrain_range_for_size")
_PRIVATE = ("_softmax", "_log_softmax", "_scaled_mm", "_indices", "_values", "_nnz", "_unique2")  # that texts use
_TYPES = {
    "::std::": "std::",
    "at::": "",
    "c10::": "",
    "const std::optional<": "const OptionalArg<",
    "std::optional<": "OptionalArg<",
    "std::nullopt": "{}",
    "string_view": "TextArg",
    "MemoryFormContiguous": "MemoryFormat::Contiguous",
}
# The types of arguments of torch's C++ functions, as c++filt writes them, by their letters.
_LETTERS = {
    "at::Tensor const&": "t",
    "at::Tensor&": "t",
    "std::optional<at::Tensor> const&": "o",
    "c10::Scalar const&": "s",
    "std::optional<c10::Scalar> const&": "S",
    "c10::SymInt": "y",
    "std::optional<c10::SymInt>": "Y",
    "long": "l",
    "std::optional<long>": "L",
    "bool": "b",
    "std::optional<bool>": "B",
    "double": "d",
    "std::optional<double>": "D",
    "c10::ScalarType": "c",
    "std::optional<c10::ScalarType>": "C",
    "c10::Device": "v",
    "std::optional<c10::Device>": "V",
    "std::optional<c10::Layout>": "U",
    "c10::MemoryFormat": "m",
    "std::optional<c10::MemoryFormat>": "M",
    "c10::ArrayRef<long>": "a",
    "c10::ArrayRef<c10::SymInt>": "x",
    "c10::OptionalArrayRef<long>": "A",
    "c10::OptionalArrayRef<c10::SymInt>": "X",
    "std::optional<c10::ArrayRef<double> >": "e",
    "c10::ArrayRef<at::Tensor>": "q",
    "c10::IListRef<at::Tensor> const&": "Q",
    "std::basic_string_view<char, std::char_traits<char> >": "w",
    "std::optional<std::basic_string_view<char, std::char_traits<char> > >": "W",
    "std::optional<at::Generator>": "g",
}
_DIRECT_RESULTS = re.compile(
    r"Tensor&?|bool|int64_t|double|void|ScalarType|Scalar|std::(?:tuple|vector)<Tensor(?:,Tensor)*>"
)


def main() -> None:
    """Write the table."""
    root = Path(torchgen.__file__).parent / "packaged/ATen/native"
    parsed = parse_native_yaml(str(root / "native_functions.yaml"), str(root / "tags.yaml"))
    with local.parametrize(use_const_ref_for_mutable_tensors=False, use_ilistref_for_tensor_lists=False):
        lines = sorted({line for function in parsed.native_functions for line in _lines(function)})
    _TABLE.write_text("".join(f"{line}\n" for line in lines))
    print(f"{_TABLE}: {len(lines)} signatures of {len({line.split(chr(9))[0] for line in lines})} names")


def _lines(function: NativeFunction) -> Iterator[str]:
    name = function.func.name.name
    if str(name).startswith("_") and not str(name).startswith(_PRIVATE):
        return
    if str(name) in _WITHOUT_TENSORS or "backward" in str(name) or "generated" in function.tags:
        return
    for variant, letter in ((Variant.function, "f"), (Variant.method, "m")):
        if variant not in function.variants:
            continue
        group = CppSignatureGroup.from_native_function(function, method=letter == "m", fallback_binding=False)
        if line := _line(function, group.signature, letter):
            yield line


def _line(function: NativeFunction, signature: CppSignature, letter: str) -> str | None:
    result = _simplify(cpp.returns_type(function.func.returns, symint=False).cpp_type())
    bindings = signature.arguments()
    params = [_simplify(binding.decl()) for binding in bindings]
    text = " ".join((result, *params))
    if _UNSUPPORTED.search(text):
        return None
    arguments = {name: text for binding in bindings for name, text in _arguments(function, binding.argument)}
    if letter == "m":
        arguments["self"] = "*this"
    ordered = [arguments[argument.name] for argument in function.func.schema_order_arguments()]
    overload = f"{function.func.name.name}.{function.func.name.overload_name}".rstrip(".")
    columns = (signature.name(), overload, letter, result, ", ".join(params), ", ".join(ordered))
    direct_call = _direct_call(function, result)
    return "\t".join((*columns, *direct_call)) if direct_call else None


def _direct_call(function: NativeFunction, result: str) -> tuple[str, str] | None:
    """Return the letters of the arguments and the types in the mangled name of torch's C++ function."""
    returns = dispatcher.returns_type(function.func.returns).cpp_type()
    name = function.func.name.unambiguous_name()
    mangled, types = _symbols().get(f"_ZN2at4_ops{len(name)}{name}4call", ("", ()))
    if not mangled or "SymInt" in returns or not _DIRECT_RESULTS.fullmatch(result) or not {*types} <= {*_LETTERS}:
        return None
    return "".join(_LETTERS[text] for text in types), mangled


@functools.lru_cache(maxsize=1)
def _symbols() -> dict[str, tuple[str, list[str]]]:
    """Return the types of the functions in torch's library, mangled and in C++, by the mangled names in front of them."""
    library = Path(torch.__file__).parent / "lib/libtorch_cpu.so"
    names = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    names = "\n".join(re.findall(r" T (_ZN2at4_ops\d+\w+?4callE\w+)$", names, re.MULTILINE))
    texts = subprocess.run(["c++filt"], input=names, capture_output=True, text=True, check=True).stdout
    return {
        name[: end + 5]: (name[end + 5 :], _split(text.partition("::call(")[2].removesuffix(")")))
        for name, text in zip(names.splitlines(), texts.splitlines(), strict=True)
        if (end := name.index("4callE"))
    }


def _split(types: str) -> list[str]:
    """Split a list of types at the commas between them."""
    parts = [""]
    for character in types:
        if character == "," and parts[-1].count("<") == parts[-1].count(">"):
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _arguments(function: NativeFunction, argument: Any) -> Iterator[tuple[str, str]]:
    """Yield each argument of the schema that a parameter in C++ stands for, and how it is passed."""
    if isinstance(argument, TensorOptionsArguments):
        members = {"dtype": "dtype", "layout": "layout", "device": "device", "pin_memory": "pinned_memory"}
        yield from ((name, f"{name}=options.{member}_opt()") for name, member in members.items())
        return
    name = argument.argument.name if isinstance(argument, SelfArgument) else argument.name
    arguments = function.func.arguments
    is_keyword = any(name == other.name for other in (*arguments.flat_kwarg_only, *arguments.out))
    yield name, f"{name}={name}" if is_keyword else name


def _simplify(text: str) -> str:
    for old, new in _TYPES.items():
        text = text.replace(old, new)
    return re.sub(r" ([&>])", r"\1", text)


if __name__ == "__main__":
    main()
