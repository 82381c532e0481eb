"""Functions of hand-written C++ in `functions=`: which names are possible, and which text exports them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jitload.errors import LaunchSpecError
from jitload.launch import Launch
from jitload.request.arguments import Functions

if TYPE_CHECKING:
    from jitload.request.request import HostSource, Unit

# The keywords and operator names of C++17.
_KEYWORDS = """
 alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class compl const
 const_cast constexpr continue decltype default delete do double dynamic_cast else enum explicit export extern false
 float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq
 private protected public register reinterpret_cast return short signed sizeof static static_assert static_cast
 struct switch template this thread_local throw true try typedef typeid typename union unsigned using virtual void
 volatile wchar_t while xor xor_eq
""".replace("\n", " ")


def check_host_functions(functions: Functions | None, host: HostSource, *, names: Sequence[str]) -> None:
    """Raise an error for what `functions=` cannot say about C++ functions."""
    if keyword := next((name for name in names if f" {name} " in _KEYWORDS), None):
        raise LaunchSpecError(
            f"{keyword!r} is a C++ keyword, so no function can have that name",
            field="functions",
            hint=f"Export it by hand: TVM_FFI_DLL_EXPORT_TYPED_FUNC({keyword}, function).",
        )
    if isinstance(functions, Mapping):
        for name, value in functions.items():
            if isinstance(value, Launch | list | tuple):
                raise LaunchSpecError(
                    "a Launch is for kernels, and this module's functions are C++",
                    kernel=name,
                    field=f"functions[{name!r}]",
                    hint="Pass the name alone, or with a docstring; the C++ performs the launch.",
                )
    for name in () if functions is None else names:
        if find_exporting_unit(host.units, name) is None:
            raise LaunchSpecError(
                f"no file defines a function {name!r} outside of namespaces and classes",
                field="functions",
                hint=f"Export it in its file, TVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, function).",
            )


def find_exporting_unit(units: Sequence[Unit], name: str) -> Unit | None:
    """Return the unit that exports a function: that of the inline texts, or else the file that defines the function.

    A function that no file defines may be in a header if there is only one file to include it.
    """
    if inline := next((unit for unit in units if not unit.is_file), None):
        return inline
    from jitload.cpptext.declarations import defined_functions

    if exporting := next((unit for unit in units if exports_by_hand(unit, name)), None):
        return exporting
    files = [unit for unit in units if not unit.file.endswith(".c")]
    defining = (unit for unit in files if any(name in defined_functions(text) for _, text in unit.pieces))
    return next(defining, files[0] if len(files) == 1 else None)


def exports_by_hand(unit: Unit, name: str) -> bool:
    """Return whether a file exports a function to tvm-ffi itself."""
    export = rf"TVM_FFI_DLL_EXPORT_TYPED_FUNC\s*\(\s*{name}\s*,|__tvm_ffi_{name}\b"
    return unit.is_file and any(re.search(export, text) for _, text in unit.pieces)
