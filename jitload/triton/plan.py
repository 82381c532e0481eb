"""Decides which specialization of a kernel Triton compiles, from `signature=` or from example arguments.

This module parses a signature itself, and accepts Triton's spelling of types. Example arguments are passed to Triton,
which specializes the kernel for them as it does at a launch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jitload.element_types import ELEMENT_TYPES
from jitload.errors import SignatureError, nearest_name
from jitload.triton.kernel import OPTIONS, CompileSpec, TritonKernel, choose_config, config_values, plain_value
from jitload.triton.versions import cuda_backend, stable_interface

if TYPE_CHECKING:
    from jitload.model import ParameterKind

Path = tuple[int, ...]  # a parameter's index, then indexes within tuples
Types = Any  # a type's text, or a tuple of Types
Hint = Literal["16", "1", "null", ""]  # a multiple of 16; always 1; always None
HintedType = tuple[str, Hint]


class Plan(NamedTuple):
    """One specialization of a kernel. Two plans are equal if they give the same machine code.

    Attributes:
        types: A (name, type) pair for each parameter in order. A type is a text such as `"i32"` or `"constexpr"`, or a
            tuple of types.
        constants: Values that are compiled in, by path: a parameter's index, then indexes within tuples.
        multiples: Paths of the integers and pointers that are assumed to be multiples of 16.
        constexprs: Names of the parameters that a call does not pass.
        options: Options of the compiler.
    """

    types: tuple[tuple[str, Types], ...]
    constants: Mapping[Path, Any]
    multiples: tuple[Path, ...]
    constexprs: frozenset[str]
    options: Mapping[str, Any]


def make_plan(kernel: TritonKernel, spec: CompileSpec, capability: int) -> Plan:
    """Return the specialization that `spec` describes."""
    return _plan_types(kernel, resolve_spec(kernel, spec, capability))


def resolve_spec(kernel: TritonKernel, spec: CompileSpec, capability: int) -> CompileSpec:
    """Return the spec with the values of the configuration and of heuristics, and with types for example arguments."""
    config = choose_config(kernel, spec)
    names = {param.name for param in kernel.params}
    tuned = config_values(config)
    for name, value in tuned.items():
        if name in names and name in spec.constexprs and spec.constexprs[name] != value:
            raise SignatureError(
                f"kernel {kernel.name!r}: {name!r} is {value!r} in the configuration and {spec.constexprs[name]!r} "
                "in constexprs= or as a keyword: pass it once"
            )
    values = {**tuned, **spec.options, **spec.constexprs}
    if getattr(config, "pre_hook", None) is not None or kernel.heuristics:
        from jitload.triton.heuristics import apply_heuristics, apply_pre_hook

        spec = apply_pre_hook(kernel, spec, config, values)
        explicit = {*getattr(config, "kwargs", config), *spec.constexprs, *spec.options}
        values = apply_heuristics(kernel, spec, values, explicit)
    constexprs = {name: value for name, value in values.items() if name in names or name in spec.constexprs}
    options = {name: value for name, value in values.items() if name not in constexprs}
    # A constexpr may have the name of an option. Triton then takes one keyword as both.
    options |= {name: constexprs[name] for name in OPTIONS if name in constexprs and name not in options}
    spec = spec._replace(constexprs=constexprs, options=options, config=None)
    return _with_types(kernel, spec, capability) if spec.signature is None else spec


def complete_constexprs(
    kernel: TritonKernel,
    constexprs: Mapping[str, Any],
    *,
    unannotated: Sequence[str] = (),
    bound: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Return the value of each constexpr, including defaults.

    `unannotated` are parameters that the signature, not the kernel, declares as constexprs. `bound` are parameters that
    are passed by position: they need no value here.
    """
    params = {param.name: param for param in kernel.params}
    if unknown := [name for name in constexprs if name not in params]:
        raise SignatureError(
            f"kernel {kernel.name!r} has no parameter {unknown[0]!r} for constexprs=; its constexprs are "
            f"{', '.join(name for name, param in params.items() if param.is_constexpr) or 'none'}"
        )
    declared = [name for name, param in params.items() if param.is_constexpr or name in unannotated]
    required = [name for name in declared if name not in bound]
    defaults = {name: params[name].default for name in required if params[name].has_default}
    values = {**defaults, **constexprs}
    if missing := [name for name in required if name not in values]:
        example = ", ".join(f"{name!r}: …" for name in missing)
        raise SignatureError(
            f"kernel {kernel.name!r}: no value for {', '.join(missing)}: pass constexprs={{{example}}}"
        )
    return {name: plain_value(value) for name, value in values.items()}


# ---- a signature -----------------------------------------------------------------------------------------------


def _plan_types(kernel: TritonKernel, spec: CompileSpec) -> Plan:
    """Return the specialization for the types in `spec.signature`."""
    assert spec.signature is not None
    texts = types_by_name(kernel, spec.signature)
    unannotated = [name for name, text in texts.items() if text == "constexpr"]
    values = complete_constexprs(kernel, spec.constexprs, unannotated=unannotated)
    if missing := [p.name for p in kernel.params if p.name not in {**texts, **values} and not p.annotation_type]:
        raise SignatureError(f"kernel {kernel.name!r}: signature= has no type for {', '.join(missing)}")
    types: list[tuple[str, Types]] = []
    constants: dict[Path, Any] = {}
    multiples: list[Path] = []
    for index, param in enumerate(kernel.params):
        if param.name in values:
            types.append((param.name, "constexpr"))
            constants[(index,)] = values[param.name]
            continue
        reader = _TypeReader(f"kernel {kernel.name!r}, parameter {param.name!r}", constants, multiples)
        types.append((param.name, reader.read(texts.get(param.name, param.annotation_type), (index,))))
    return Plan(tuple(types), constants, tuple(multiples), frozenset(values), spec.options)


def types_by_name(kernel: TritonKernel, signature: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """Return `signature=` as a mapping from parameters to types. A str lists the types of the run-time parameters."""
    names = [param.name for param in kernel.params]
    if isinstance(signature, str):
        from jitload.signature.demangle import split_top_level

        types = [text.strip() for text in split_top_level(signature, ",") if text.strip()]
        run_time = [param.name for param in kernel.params if not param.is_constexpr]
        if len(types) != len(run_time):
            raise SignatureError(
                f"kernel {kernel.name!r}: signature= has {len(types)} types, but the run-time parameters are "
                f"{', '.join(run_time) or 'none'}; constexprs go into constexprs="
            )
        return dict(zip(run_time, types, strict=True))
    if not isinstance(signature, Mapping):
        raise SignatureError(
            f"signature= must map parameters to types, {{{names[0] if names else 'x'!r}: '*fp32:16'}}, got "
            f"{type(signature).__name__}"
        )
    if unknown := [name for name in signature if name not in names]:
        raise SignatureError(
            f"kernel {kernel.name!r} has no parameter {unknown[0]!r}; its parameters are {', '.join(names)}"
        )
    return signature


class _TypeReader(NamedTuple):
    """Reads the types in `signature=` of a parameter, and adds to the constants and multiples what they assume."""

    where: str
    constants: dict[Path, Any]
    multiples: list[Path]

    def read(self, value: Any, path: Path) -> Types:
        """Return the type without its hint, or a tuple of the types of a tuple's items."""
        if isinstance(value, tuple | list):
            return _rebuild_tuple(value, (self.read(item, (*path, index)) for index, item in enumerate(value)))
        if plain_value(value) is not value:
            self.constants[path] = plain_value(value)
            return "constexpr"
        text, hint = read_type(value, self.where)
        if text == "constexpr" and not hint:
            problem = "a constexpr in a tuple needs a value: write it as tl.constexpr(64), for example"
            raise SignatureError(f"{self.where}: {problem}")
        if hint == "16":
            self.multiples.append(path)
        elif hint:
            self.constants[path] = 1 if hint == "1" else None
            return "constexpr"
        return text


def named_leaves(name: str, types: object, path: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield a (name, path, type) triple, such as `("t_0", (2, 0), "i32")`, for a parameter or each item of a tuple.

    The name of an item ends with its index, or, in a named tuple, with its field.
    """
    if not isinstance(types, tuple):
        yield name, path, str(types)
        return
    fields = getattr(types, "_fields", range(len(types)))
    for index, (field, inner) in enumerate(zip(fields, types, strict=True)):
        yield from named_leaves(f"{name}_{field}", inner, (*path, index))


# ---- the text of a type ----------------------------------------------------------------------------------------

# From Triton's names of element types to DLPack's names, or None if DLPack has no such type.
_DTYPES = {row.triton: row for row in ELEMENT_TYPES.values() if row.triton}
_DTYPES["u1"] = ELEMENT_TYPES["bool"]
ELEMENTS: dict[str, str | None] = {**{name: row.dtype for name, row in _DTYPES.items()}, "fp8e4b15": None, "void": None}
SCALARS: dict[str, tuple[ParameterKind, int, str | None]] = {
    name: (row.kind, row.size, row.dtype if row.kind == "float" else None)
    for name, row in _DTYPES.items()
    if not name.startswith("fp8")
}
_ALIASES = {
    **{row.dtype: row.triton for row in ELEMENT_TYPES.values() if row.triton},
    **{name.replace("fp8", "float8"): name for name in ELEMENTS if name.startswith("fp8")},
    "int1": "i1", "int": "i32", "half": "fp16", "float": "fp32", "f32": "fp32", "double": "fp64",
}  # fmt: skip
POINTER = r"(?P<const>const\s+)?(?P<stars>\**)(?P<k>k?)(?P<element>\w+)"
DESCRIPTOR = r"tensordesc<\s*(\w+)\s*\[([\d\s,]+)\]\s*>"


def read_type(value: object, where: str) -> HintedType:
    """Return the (type, hint) pair for an item of `signature=`: `"*fp32:16"`, `"i32"`, `"constexpr"` or None.

    The hint is an assumption about the argument: "16" means a multiple of 16, "1" always 1, "null" always None, and ""
    no assumption. The item None means a pointer that is always None. `where` names the kernel and the parameter in
    messages.
    """
    if value is None:
        return "constexpr", "null"
    if not isinstance(value, str):
        raise SignatureError(f"{where}: a type is a text such as '*fp32:16' or 'i32', got {value!r}")
    name, _, hint = (part.strip() for part in value.partition(":"))
    text = _canonical_type(name)
    if text is None:
        raise _unknown_type(value, where)
    is_int = not text.startswith("*") and text in SCALARS and SCALARS[text][0] in ("int", "uint")
    if hint not in ("", "16", "1") or (hint == "1" and not is_int):
        raise SignatureError(
            f"{where}: the hint ':{hint}' in {value!r} is not allowed. The hints are ':16' for an integer or address "
            "that is a multiple of 16, and ':1' for an integer that is always 1"
        )
    if hint == "16" and not (is_int or text.startswith("*")):
        raise SignatureError(f"{where}: {value!r}: only a pointer or an integer can be a multiple of 16")
    return text, hint  # type: ignore[return-value]  # the checks above leave only a Hint


def _canonical_type(text: str) -> str | None:
    """Return a type in Triton's spelling, or None if Triton does not have the type."""
    if text in ("constexpr", "nvTmaDesc") or text in SCALARS or (text[:1] == "*" and text[1:] in ELEMENTS):
        return text  # the usual case: compiling a pattern takes longer than the rest of this function
    if match := re.fullmatch(DESCRIPTOR, text):
        element = _ALIASES.get(match[1], match[1])
        shape = ", ".join(number.strip() for number in match[2].split(","))
        return f"tensordesc<{element}[{shape}]>" if element in ELEMENTS else None
    match = re.fullmatch(POINTER, text)
    if match is None or len(match["stars"]) > 1:
        return None
    element = _ALIASES.get(match["element"], match["element"])
    is_const = bool(match["const"] or match["k"])
    if not match["stars"]:
        return element if element in SCALARS and not is_const else None
    return f"*{'k' if is_const else ''}{element}" if element in ELEMENTS else None


def _unknown_type(value: str, where: str) -> SignatureError:
    if "**" in value:  # on such a type, Triton 3.9 ends the process
        return SignatureError(
            f"{where}: {value!r}: Triton has no pointers to pointers: pass '*u64', and cast the numbers that the "
            "kernel loads to pointers, .to(tl.pointer_type(tl.float32))"
        )
    types = (*SCALARS, *(f"*{name}" for name in ELEMENTS), "constexpr")
    near = nearest_name(value.partition(":")[0].strip(), types)
    hint = f"did you mean {near!r}?" if near else "types are such as '*fp32', 'i32', 'tensordesc<fp16[128, 64]>'."
    return SignatureError(f"{where}: unknown type {value!r}; {hint}")


# ---- example arguments -----------------------------------------------------------------------------------------


def _with_types(kernel: TritonKernel, spec: CompileSpec, capability: int) -> CompileSpec:
    """Return the spec with the types for which Triton would compile the kernel in place of the example arguments."""
    run_time = [p.name for p in kernel.params if not p.is_constexpr and p.name not in spec.constexprs]
    if run_time and not spec.args and not spec.named_args:
        raise SignatureError(
            f"kernel {kernel.name!r}: the types of {', '.join(run_time)} are not known: pass "
            f"signature={{{run_time[0]!r}: '*fp32:16', …}}, example arguments, or the compiled kernel that a launch "
            "returned"
        )
    positional = kernel.params[: len(spec.args)]
    constexprs = complete_constexprs(kernel, spec.constexprs, bound=frozenset(param.name for param in positional))
    backend = cuda_backend(capability)
    with stable_interface("create_function_from_signature()"):
        from triton.runtime.jit import create_function_from_signature

        bind = create_function_from_signature(kernel.function.signature, kernel.params, backend)
    try:
        named_args = {name: _example(value) for name, value in spec.named_args.items()}
        values, specialization, _ = bind(*map(_example, spec.args), **named_args, **constexprs)
    except (TypeError, KeyError, AttributeError, OverflowError, ValueError, AssertionError) as error:
        names = ", ".join(param.name for param in kernel.params)
        text = str(error).replace("dynamic_func()", "it")
        raise SignatureError(f"the example arguments do not fit kernel {kernel.name}({names}): {text}") from error
    rows = zip(kernel.params, specialization, strict=True)
    signature = {p.name: _hinted_type(types, attribute, values[p.name], backend) for p, (types, attribute) in rows}
    return spec._replace(
        args=(),
        named_args={},
        signature={name: signature[name] for name in run_time},
        constexprs={**spec.constexprs, **{p.name: values[p.name] for p in positional if p.is_constexpr}},
    )


def _hinted_type(types: Any, attribute: Any, value: Any, backend: Any) -> Any:
    """Return the item of `signature=` for what Triton says of an argument, or for a tuple a tuple of such items."""
    if isinstance(types, tuple):
        items = zip(types, attribute, value, strict=True)
        return _rebuild_tuple(types, (_hinted_type(*item, backend) for item in items))
    if types == "constexpr":
        from triton.language import constexpr

        value = plain_value(value)
        return None if value is None else "i32:1" if type(value) is int and value == 1 else constexpr(value)
    is_multiple = isinstance(attribute, str) and ["tt.divisibility", 16] in backend.parse_attr(attribute)
    return f"{types}:16" if is_multiple else str(types)


def _example(value: Any) -> Any:
    """Replace a `torch.dtype` by a stand-in for an aligned tensor of that dtype, as Triton's `warmup()` does."""
    if type(value).__name__ == "dtype" and type(value).__module__ == "torch":
        return _AlignedTensor(value)
    if isinstance(value, tuple):
        return _rebuild_tuple(value, map(_example, value))
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise OverflowError(f"{value} has more than 64 bits")
    return value


def _rebuild_tuple(value: Any, items: Iterable[Any]) -> tuple[Any, ...]:
    """Return the items as a tuple. If `value` is a named tuple, so is the result: kernels may use the fields."""
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


class _AlignedTensor:
    """A stand-in for a tensor, from which Triton reads a dtype and an aligned address."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    @staticmethod
    def data_ptr() -> int:
        return 0

    @staticmethod
    def ptr_range() -> int:
        return 0
