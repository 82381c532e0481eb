"""`functions=` in, the exported names with their launches out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from jitload.errors import LaunchSpecError
from jitload.launch import Launch
from jitload.sources import HostSource

# The words of C++17 and of its operators.
_WORDS = """
 alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class compl const
 const_cast constexpr continue decltype default delete do double dynamic_cast else enum explicit export extern false
 float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq
 private protected public register reinterpret_cast return short signed sizeof static static_assert static_cast
 struct switch template this thread_local throw true try typedef typeid typename union unsigned using virtual void
 volatile wchar_t while xor xor_eq
""".replace("\n", " ")

Functions = str | Sequence[str] | Mapping[str, Launch | str | None]


def read_functions(functions: Functions | None) -> tuple[tuple[str, Launch], ...] | None:
    """Return `functions=` as names with launches: a name, several, or a mapping to a `Launch` or a docstring."""
    if functions is None:
        return None
    if isinstance(functions, Mapping):
        rows = list(functions.items())
    elif isinstance(functions, Iterable):
        names = [functions] if isinstance(functions, str) else functions
        rows = [(name, None) for name in (sorted(names, key=repr) if isinstance(names, AbstractSet) else names)]
    else:
        problem = f"must be a name, several, or a mapping to Launch records, got {type(functions).__name__}"
        raise LaunchSpecError(problem, field="functions")
    if not rows:
        raise LaunchSpecError("is empty", field="functions", hint="Leave it out to export every kernel.")
    exported = [_exported(name) for name, _ in rows]
    if twice := next((name for name in exported if exported.count(name) > 1), None):
        raise LaunchSpecError(f"names {twice!r} twice", field="functions")
    return tuple((name, _launch(name, value)) for name, value in rows)


def has_launches(functions: Functions) -> bool:
    """Tell whether `functions` can only be kernels."""
    return isinstance(functions, Mapping) and any(isinstance(value, Launch) for value in functions.values())


def names_nothing(functions: Functions | None) -> bool:
    """Tell whether there is a list or a mapping with nothing in it, which is none where the functions are C++."""
    return isinstance(functions, Collection) and not isinstance(functions, str) and not functions


def check_host_functions(functions: Functions | None, host: HostSource, *, names: Iterable[str]) -> None:
    """Refuse what `functions=` cannot say of functions that are C++."""
    if word := next((name for name in names if f" {name} " in _WORDS), None):
        raise LaunchSpecError(
            f"{word!r} is a word of C++ itself, which no function can be called",
            field="functions",
            hint=f"Export it by hand: TVM_FFI_DLL_EXPORT_TYPED_FUNC({word}, function).",
        )
    if isinstance(functions, Mapping):
        for name, value in functions.items():
            if isinstance(value, Launch):
                raise LaunchSpecError(
                    "a Launch is for kernels, and this module's functions are C++",
                    kernel=name,
                    field=f"functions[{name!r}]",
                    hint="Give its name, or its name with a docstring; the C++ does the launch.",
                )
    if functions is not None and all(unit.is_file for unit in host.units):
        raise LaunchSpecError(
            "names functions of C++ files, which are compiled as they are",
            field="functions",
            hint="Write TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, function) in the file.",
        )


def _exported(name: object) -> str:
    if not isinstance(name, str) or not (name.isascii() and name.isidentifier()):
        raise LaunchSpecError(
            f"{name!r} is not a name a function can be exported under",
            field="functions",
            hint="Use letters, digits and underscores; name the kernel itself with Launch(kernel=…).",
        )
    return name


def _launch(name: str, value: object) -> Launch:
    if value is None:
        return Launch()
    if isinstance(value, str):
        return Launch(doc=value)
    if isinstance(value, Launch):
        return value
    raise LaunchSpecError(
        f"functions[{name!r}] must be a Launch or a docstring, got {type(value).__name__}",
        kernel=name,
        field="functions",
    )
