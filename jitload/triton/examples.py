"""Example arguments in, what Triton would compile for them out: Triton's own rules decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jitload.errors import SignatureError
from jitload.triton.kernel import GivenKernel
from jitload.triton.plan import Path, Plan, Types, all_constexprs
from jitload.triton.versions import Triton, changed_interface, cuda_backend

_Read = tuple[list[Types], dict[Path, Any], list[Path]]  # types by place, constants, multiples of 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Example arguments: by position, by name, and the constexprs among them."""

    args: tuple[Any, ...]
    named: Mapping[str, Any]
    constexprs: Mapping[str, Any]


def plan_arguments(
    given: GivenKernel, examples: Examples, options: Mapping[str, Any], triton: Triton, capability: int
) -> Plan:
    """Plan what Triton would compile for example arguments.

    Raises:
        SignatureError: They do not fit the kernel, or Triton knows no type for one.
    """
    params = given.function.params
    placed = frozenset(param.name for param in params[: len(examples.args)])
    constexprs = all_constexprs(given, examples.constexprs, except_for=placed)
    by_name = {**{param.name: value for param, value in zip(params, examples.args, strict=False)}, **examples.named}
    if not triton.has_paths and (odd := next((name for name, value in by_name.items() if type(value) is tuple), None)):
        raise SignatureError(f"kernel {given.name!r}, parameter {odd!r}: Triton 3.2 knows no tuples; 3.3 does")
    backend = cuda_backend(triton, capability)
    binder = _binder(given, triton, backend)
    try:
        named = {name: _example(value) for name, value in examples.named.items()}
        found = binder(*map(_example, examples.args), **named, **constexprs)
    except (TypeError, KeyError, AttributeError, OverflowError, ValueError, AssertionError) as error:
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
    if type(value) is tuple:
        return tuple(map(_example, value))
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise OverflowError(f"{value} has more than 64 bits")
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
