"""Functions of hand-written C++ in `functions=`: which names and fields of a `Launch` are possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jitload.errors import LaunchSpecError
from jitload.request.arguments import Functions

if TYPE_CHECKING:
    from jitload.request.request import HostSource

# The keywords and operator names of C++17.
_KEYWORDS = """
 alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class compl const
 const_cast constexpr continue decltype default delete do double dynamic_cast else enum explicit export extern false
 float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq
 private protected public register reinterpret_cast return short signed sizeof static static_assert static_cast
 struct switch template this thread_local throw true try typedef typeid typename union unsigned using virtual void
 volatile wchar_t while xor xor_eq
""".replace("\n", " ")
# Fields of a Launch that only kernels have.
_KERNEL_FIELDS = (
    "grid", "block", "shared_bytes", "cluster", "cluster_policy", "cooperative", "pdl", "priority", "signature",
)  # fmt: skip


def check_host_functions(functions: Functions | None, host: HostSource, *, names: Sequence[str]) -> None:
    """Raise an error for what `functions=` cannot say about C++ functions."""
    if keyword := next((name for name in names if f" {name} " in _KEYWORDS), None):
        raise LaunchSpecError(
            f"{keyword!r} is a C++ keyword, so no function can have that name",
            field="functions",
            hint=f"Export it by hand: TVM_FFI_DLL_EXPORT_TYPED_FUNC({keyword}, function).",
        )
    for name, value in functions.items() if isinstance(functions, Mapping) else ():
        fields = [field for field in _KERNEL_FIELDS if getattr(value, field, None) not in (None, 0, False)]
        if isinstance(value, list | tuple) or fields:
            problem = f"is for kernels, and {name!r} is a function of the host, which chooses its launches itself"
            field = f"functions[{name!r}]" if not fields else f"Launch.{fields[0]}"
            hint = "Pass its name alone or with a docstring, or a Launch without grid and block."
            raise LaunchSpecError(problem, kernel=name, field=field, hint=hint)
    if functions is not None and not host.units:
        raise LaunchSpecError("names functions, and there is no source that could define them", field="functions")
