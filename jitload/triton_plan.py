"""A kernel's parameters with a signature or example arguments in, what to compile out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jitload.errors import SignatureError
from jitload.triton_kernel import GivenKernel
from jitload.triton_types import TypeText, read_type
from jitload.triton_versions import Triton, changed_interface

Path = tuple[int, ...]
Types = Any  # a type's text, or a tuple of Types
_Read = tuple[list[Types], dict[Path, Any], list[Path]]  # types by place, constants, multiples of 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One specialisation of a kernel, as Triton is to compile it.

    Attributes:
        types: The type of each parameter in order: text, `"constexpr"`, or a tuple of such.
        constants: Values that are compiled in, by path: the parameter's place, and places within tuples.
        multiples: Paths of pointers and integers that are multiples of 16.
        constexprs: Names of the parameters that are no arguments of a call.
        options: Options of the compiler.
    """

    types: tuple[tuple[str, Types], ...]
    constants: Mapping[Path, Any] = field(default_factory=dict)
    multiples: tuple[Path, ...] = ()
    constexprs: frozenset[str]
    options: Mapping[str, Any] = field(default_factory=dict)


def plan_signature(
    given: GivenKernel, signature: Mapping[str, Any] | str, constexprs: Mapping[str, Any], options: Mapping[str, Any]
) -> Plan:
    """Plan what a `signature=` and constexprs say.

    Raises:
        SignatureError: They do not fit the kernel.
    """
    params = given.function.params
    texts = _by_name(given, signature)
    values = _all_constexprs(given, constexprs, called_so=[n for n, text in texts.items() if text == "constexpr"])
    missing = [p.name for p in params if p.name not in texts and p.name not in values and not p.annotation_type]
    if missing:
        raise SignatureError(f"kernel {given.name!r}: signature= has no type for {', '.join(missing)}")
    types: list[tuple[str, Types]] = []
    constants: dict[Path, Any] = {}
    multiples: list[Path] = []
    for number, param in enumerate(params):
        if param.name in values:
            types.append((param.name, "constexpr"))
            constants[(number,)] = values[param.name]
            continue
        where = f"kernel {given.name!r}, parameter {param.name!r}"
        read = _read_types(texts.get(param.name, param.annotation_type), where)
        for path, leaf in _leaves(read, (number,)):
            if leaf.hint == "16":
                multiples.append(path)
            elif leaf.hint:
                constants[path] = 1 if leaf.hint == "1" else None
        types.append((param.name, _texts(read)))
    return Plan(
        types=tuple(types),
        constants=constants,
        multiples=tuple(multiples),
        constexprs=frozenset(values),
        options=options,
    )


def _by_name(given: GivenKernel, signature: Mapping[str, Any] | str) -> Mapping[str, Any]:
    names = [param.name for param in given.function.params]
    if isinstance(signature, str):
        return dict(
            zip([p.name for p in given.function.params if not p.is_constexpr], split_types(signature), strict=False)
        )
    if not isinstance(signature, Mapping):
        raise SignatureError(
            f"signature= must map parameters to types, {{{names[0] if names else 'x'!r}: '*fp32:16'}}, got "
            f"{type(signature).__name__}"
        )
    if unknown := [name for name in signature if name not in names]:
        raise SignatureError(
            f"kernel {given.name!r} has no parameter {unknown[0]!r}; its parameters are {', '.join(names)}"
        )
    return signature


def split_types(text: str) -> list[str]:
    """Split `"*fp32:16, tensordesc<fp16[128, 64]>, i32"` at the commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<[(") - (letter in ">])")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _all_constexprs(
    given: GivenKernel,
    constexprs: Mapping[str, Any],
    *,
    called_so: Sequence[str] = (),
    except_for: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Return the value of each constexpr, defaults included.

    Args:
        given: The kernel.
        constexprs: The values given.
        called_so: Parameters besides those that the kernel annotates.
        except_for: Parameters that got their value otherwise.

    Raises:
        SignatureError: There is none for some, or a name is no parameter.
    """
    params = {param.name: param for param in given.function.params}
    if unknown := [name for name in constexprs if name not in params]:
        raise SignatureError(
            f"kernel {given.name!r} has no parameter {unknown[0]!r} for constexprs=; its constexprs are "
            f"{', '.join(name for name, param in params.items() if param.is_constexpr) or 'none'}"
        )
    annotated = [name for name, param in params.items() if param.is_constexpr or name in called_so]
    wanted = [name for name in annotated if name not in except_for]
    values = dict(constexprs)
    for name in wanted:
        if name not in values and params[name].has_default:
            values[name] = params[name].default
    if missing := [name for name in wanted if name not in values]:
        shown = ", ".join(f"{name!r}: …" for name in missing)
        raise SignatureError(f"kernel {given.name!r}: no value for {', '.join(missing)}: give constexprs={{{shown}}}")
    return {name: getattr(value, "value", value) if _is_constexpr(value) else value for name, value in values.items()}


def _is_constexpr(value: Any) -> bool:
    return type(value).__name__ == "constexpr"


def _read_types(value: Any, where: str) -> Any:
    if isinstance(value, tuple | list):
        return tuple(_read_types(inner, where) for inner in value)
    return read_type(value, where)


def _texts(read: Any) -> Types:
    if isinstance(read, tuple):
        return tuple(map(_texts, read))
    return "constexpr" if read.hint in ("1", "null") else read.text


def _leaves(read: Any, path: Path) -> Iterator[tuple[Path, TypeText]]:
    if isinstance(read, tuple):
        for number, inner in enumerate(read):
            yield from _leaves(inner, (*path, number))
    else:
        yield path, read


# ---- example arguments -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Example arguments: by position, by name, and the constexprs among them."""

    args: tuple[Any, ...]
    named: Mapping[str, Any]
    constexprs: Mapping[str, Any]


def plan_arguments(
    given: GivenKernel, examples: Examples, options: Mapping[str, Any], triton: Triton, backend: Any
) -> Plan:
    """Plan what Triton would compile for example arguments.

    Raises:
        SignatureError: They do not fit the kernel, or Triton knows no type for one.
    """
    params = given.function.params
    placed = frozenset(param.name for param in params[: len(examples.args)])
    constexprs = _all_constexprs(given, examples.constexprs, except_for=placed)
    binder = _binder(given, triton, backend)
    try:
        named = {name: _example(value) for name, value in examples.named.items()}
        found = binder(*map(_example, examples.args), **named, **constexprs)
    except (TypeError, KeyError, AttributeError) as error:
        names = ", ".join(param.name for param in params)
        words = str(error).replace("dynamic_func()", "it")
        raise SignatureError(f"the example arguments do not fit kernel {given.name}({names}): {words}") from error
    read = _read_specialization if triton.has_paths else _read_specialization_of_3_2
    types, constants, multiples = read(params, found, backend)
    for param in params:
        if param.name in constexprs:  # one that is not annotated so, too
            types[param.num], constants[(param.num,)] = "constexpr", constexprs[param.name]
    return Plan(
        types=tuple((param.name, types[param.num]) for param in params),
        constants=constants,
        multiples=tuple(path for path in multiples if path not in constants),
        constexprs=frozenset((*constexprs, *(param.name for param in params if param.is_constexpr))),
        options=options,
    )


def _example(value: Any) -> Any:
    """Let a dtype of torch's stand for an aligned tensor of it, as Triton's warmup() does."""
    if type(value).__name__ == "dtype" and type(value).__module__ == "torch":
        return _Aligned(value)
    return value


class _Aligned:
    """Stands for a tensor whose address nobody knows, and everybody takes to be aligned."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    @staticmethod
    def data_ptr() -> int:
        return 0

    @staticmethod
    def ptr_range() -> int:
        return 0


def _binder(given: GivenKernel, triton: Triton, backend: Any) -> Any:
    """Return Triton's own function from arguments to their specialisation."""
    try:
        from triton.runtime.jit import create_function_from_signature

        return create_function_from_signature(given.function.signature, given.function.params, backend)
    except (ImportError, TypeError, AttributeError) as error:
        raise changed_interface(triton, "create_function_from_signature() is not as it was", error) from error


def _read_specialization(params: Sequence[Any], found: Any, backend: Any) -> _Read:
    bound, specialization, _ = found
    constants: dict[Path, Any] = {}
    multiples: list[Path] = []
    for number, (param, (types, attribute)) in enumerate(zip(params, specialization, strict=True)):
        _note_constants(types, bound[param.name], (number,), constants)
        if types != "constexpr":
            multiples += _multiples(attribute, (number,), backend)
    return [_plain(types) for types, _ in specialization], constants, multiples


def _plain(types: Any) -> Types:
    """Return types with plain tuples in the place of named ones."""
    return tuple(map(_plain, types)) if isinstance(types, tuple) else str(types)


def _note_constants(types: Any, value: Any, path: Path, constants: dict[Path, Any]) -> None:
    if isinstance(types, tuple):
        for number, (inner, item) in enumerate(zip(types, value, strict=True)):
            _note_constants(inner, item, (*path, number), constants)
    elif types == "constexpr":
        constants[path] = value


def _multiples(attribute: Any, path: Path, backend: Any) -> Iterator[Path]:
    if isinstance(attribute, tuple):
        for number, inner in enumerate(attribute):
            yield from _multiples(inner, (*path, number), backend)
    elif isinstance(attribute, str) and ["tt.divisibility", 16] in backend.parse_attr(attribute):
        yield path


def _read_specialization_of_3_2(params: Sequence[Any], found: Any, backend: Any) -> _Read:
    bound, texts, *_ = found
    attributes = backend.get_attrs_descriptor(params, tuple(bound.values()))
    by_name = dict(zip([param.name for param in params if not param.is_constexpr], texts, strict=False))
    ones = attributes.arg_properties.get("tt.equal_to", ())
    fixed = [p for p in params if p.is_constexpr or p.num in ones or bound[p.name] is None]
    constants: dict[Path, Any] = {(param.num,): bound[param.name] for param in fixed}
    types = ["constexpr" if (param.num,) in constants else by_name[param.name] for param in params]
    return types, constants, [(number,) for number in attributes.arg_properties.get("tt.divisibility", ())]
