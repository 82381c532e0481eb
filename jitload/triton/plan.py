"""A kernel's parameters with a signature or example arguments in, what to compile out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jitload.errors import SignatureError
from jitload.triton.globals import plain_value
from jitload.triton.kernel import GivenKernel
from jitload.triton.types import TypeText, read_type

Path = tuple[int, ...]
Types = Any  # a type's text, or a tuple of Types


class Plan:  # by hand: a hit pays for making a dataclass, or a named tuple, more than for all its work
    """One specialisation of a kernel, as Triton is to compile it.

    Attributes:
        types: The type of each parameter in order: text, `"constexpr"`, or a tuple of such.
        constants: Values that are compiled in, by path: the parameter's place, and places within tuples.
        multiples: Paths of pointers and integers that are multiples of 16.
        constexprs: Names of the parameters that are no arguments of a call.
        options: Options of the compiler.
    """

    __slots__ = ("constants", "constexprs", "multiples", "options", "types")

    def __init__(
        self,
        *,
        types: tuple[tuple[str, Types], ...],
        constants: Mapping[Path, Any],
        multiples: tuple[Path, ...],
        constexprs: frozenset[str],
        options: Mapping[str, Any],
    ) -> None:
        self.types = types
        self.constants = constants
        self.multiples = multiples
        self.constexprs = constexprs
        self.options = options

    def is_like(self, other: Plan) -> bool:
        """Tell whether another would be the same machine code."""
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)


def plan_signature(
    given: GivenKernel, signature: Mapping[str, Any] | str, constexprs: Mapping[str, Any], options: Mapping[str, Any]
) -> Plan:
    """Plan what a `signature=` and constexprs say.

    Raises:
        SignatureError: They do not fit the kernel.
    """
    params = given.function.params
    texts = types_by_name(given, signature)
    values = all_constexprs(given, constexprs, called_so=[n for n, text in texts.items() if text == "constexpr"])
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
        for path, (text, hint) in _leaves(read, (number,)):
            if text == "constexpr" and not hint:
                raise SignatureError(f"{where}: a constexpr in a tuple has no value here: give example arguments")
            if hint == "16":
                multiples.append(path)
            elif hint:
                constants[path] = 1 if hint == "1" else None
        types.append((param.name, _texts(read)))
    return Plan(
        types=tuple(types),
        constants=constants,
        multiples=tuple(multiples),
        constexprs=frozenset(values),
        options=options,
    )


def types_by_name(given: GivenKernel, signature: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """Return a `signature=` as a mapping.

    Raises:
        SignatureError: It has other parameters than the kernel.
    """
    names = [param.name for param in given.function.params]
    if isinstance(signature, str):
        _check_count(given, split_types(signature))
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


def _check_count(given: GivenKernel, types: Sequence[str]) -> None:
    run_time = [param.name for param in given.function.params if not param.is_constexpr]
    if len(types) != len(run_time):
        raise SignatureError(
            f"kernel {given.name!r}: signature= has {len(types)} types, and the run-time parameters are "
            f"{', '.join(run_time) or 'none'}; constexprs go into constexprs="
        )


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


def all_constexprs(
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
    return {name: plain_value(value) for name, value in values.items()}


def _read_types(value: Any, where: str) -> Any:
    """Return a type, or a list of those in a tuple."""
    if isinstance(value, tuple | list):
        return [_read_types(inner, where) for inner in value]
    return read_type(value, where)


def _texts(read: Any) -> Types:
    if isinstance(read, list):
        return tuple(map(_texts, read))
    text, hint = read
    return "constexpr" if hint in ("1", "null") else text


def _leaves(read: Any, path: Path) -> Iterator[tuple[Path, TypeText]]:
    if isinstance(read, list):
        for number, inner in enumerate(read):
            yield from _leaves(inner, (*path, number))
    else:
        yield path, read
