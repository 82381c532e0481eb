"""The `functions=` argument: exported names with their launches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from jitload.errors import LaunchSpecError
from jitload.launch import Launch

if TYPE_CHECKING:
    from jitload.request.request import HostSource

Functions = str | Sequence[str] | Mapping[str, Launch | Sequence[Launch] | str | None]

# The keywords and operator names of C++17.
_KEYWORDS = """
 alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class compl const
 const_cast constexpr continue decltype default delete do double dynamic_cast else enum explicit export extern false
 float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq
 private protected public register reinterpret_cast return short signed sizeof static static_assert static_cast
 struct switch template this thread_local throw true try typedef typeid typename union unsigned using virtual void
 volatile wchar_t while xor xor_eq
""".replace("\n", " ")


def read_functions(functions: Functions | None) -> tuple[tuple[str, Launch], ...] | None:
    """Return `functions=` (a name, several names or a mapping) as pairs of exported name and launch.

    A name with several launches, which are chosen by dtype at the call, has several pairs.
    """
    if functions is None:
        return None
    if isinstance(functions, Mapping):
        items = list(functions.items())
    elif isinstance(functions, Iterable):
        names = [functions] if isinstance(functions, str) else functions
        items = [(name, None) for name in (sorted(names, key=repr) if isinstance(names, AbstractSet) else names)]
    else:
        problem = f"must be a name, several names, or a mapping to Launch records, got {type(functions).__name__}"
        raise LaunchSpecError(problem, field="functions")
    if not items:
        raise LaunchSpecError("is empty", field="functions", hint="Leave it out to export every kernel.")
    exported = [_check_export_name(name) for name, _ in items]
    if duplicate := next((name for name in exported if exported.count(name) > 1), None):
        raise LaunchSpecError(f"names {duplicate!r} twice", field="functions")
    return tuple((name, _read_launch(name, value)) for name, values in items for value in _variants(name, values))


def _variants(name: str, value: object) -> Sequence[object]:
    """Return the launches of a function."""
    if not isinstance(value, list | tuple):
        return (value,)
    if not value or not all(isinstance(launch, Launch) and launch.kernel for launch in value):
        raise LaunchSpecError(
            f"functions[{name!r}] must have a Launch(kernel=…) for each dtype",
            kernel=name,
            field="functions",
            hint=f'Write {{"{name}": [Launch(kernel="{name}<float>"), Launch(kernel="{name}<__half>")]}}.',
        )
    return value


def check_host_functions(functions: Functions | None, host: HostSource, *, names: Iterable[str]) -> None:
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
    if functions is not None and all(unit.is_file for unit in host.units):
        raise LaunchSpecError(
            "names functions of C++ files, which are compiled unchanged",
            field="functions",
            hint="Write TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, function) in the file.",
        )


def _check_export_name(name: object) -> str:
    if not isinstance(name, str) or not (name.isascii() and name.isidentifier()):
        raise LaunchSpecError(
            f"{name!r} is not a name a function can be exported under",
            field="functions",
            hint="Use letters, digits and underscores; name the kernel itself with Launch(kernel=…).",
        )
    return name


def _read_launch(name: str, value: object) -> Launch:
    if value is None:
        return Launch()
    if isinstance(value, str):
        return Launch(doc=value)
    if isinstance(value, Launch):
        return value
    raise LaunchSpecError(
        f"functions[{name!r}] must be a Launch, a list of them or a docstring, got {type(value).__name__}",
        kernel=name,
        field="functions",
    )
