"""Python functions beside a Triton kernel in, what they decide out: `@triton.heuristics`, and a pre_hook.

Triton runs them before each launch, and a library cannot. What they decide from values that are compiled in is the same
at each launch, so they run here, once, over stand-ins for the run-time arguments, of which they may learn two things
alone: whether one is None, and that one is a tensor descriptor, whose block shape a hook may set.
"""

from __future__ import annotations

import builtins
import copy
import dis
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, NoReturn

from jitload.errors import JitLoadError, SignatureError
from jitload.triton.globals import codes_in, outer_names
from jitload.triton.kernel import GivenKernel, Wanted, config_values, show_values
from jitload.triton.plan import types_by_name

# What a hook may use of what lies outside of it: all else might act outside of it, too.
_PURE = frozenset((*map(id, (isinstance, len, min, max, int, bool, range, list, tuple, abs, hasattr, math.ceil)),))
_PURE_OF_TRITON = ("cdiv", "next_power_of_2", "TensorDescriptor")
_ACTS_OUTSIDE = ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME")


def decide(given: GivenKernel, wanted: Wanted, values: Mapping[str, Any], explicit: Collection[str]) -> dict[str, Any]:
    """Return the values that are compiled in, and options, with those that `@triton.heuristics` decides.

    Args:
        given: The kernel.
        wanted: What is wanted of it.
        values: The values so far.
        explicit: The names of those that win over a heuristic; the others are a configuration's defaults.

    Raises:
        SignatureError: One is decided from a run-time argument, which is not known when a library is built.
    """
    found = dict(values)
    arguments = {name: None if kind == "null" else StandIn() for name, kind in _kinds(given, wanted)}
    for name, function in given.heuristics.items():
        if name in explicit:
            continue
        known = _Known(given, {**arguments, **found})
        try:
            found[name] = function(known)
            if type(found[name]) is StandIn:
                _refuse()
        except Exception as error:
            if known.asked:
                raise SignatureError(
                    f"kernel {given.name!r}: its heuristic decides {name!r} from the argument {known.asked!r}, which "
                    f"is known at a call alone: give it, constexprs={{{name!r}: …}}, or build variants"
                ) from error
            raise JitLoadError(f"kernel {given.name!r}: its heuristic for {name!r} failed: {error}") from error
    return found


def with_hooked_shapes(given: GivenKernel, wanted: Wanted, config: Any, values: Mapping[str, Any]) -> Wanted:
    """Return what is wanted with the block shapes of descriptors that a configuration's pre_hook sets.

    Raises:
        SignatureError: The hook does, or may do, anything else.
    """
    hook = getattr(config, "pre_hook", None)
    if hook is None:
        return wanted
    makers: dict[str, Callable[[], Any]] = {
        "null": lambda: None,
        "descriptor": _Descriptor,
        "pointer": _Pointer,
        "other": StandIn,
    }
    known = _Known(given, {**{name: makers[kind]() for name, kind in _kinds(given, wanted)}, **values})
    why = next(_acts(hook, set()), "")
    if not why:
        try:
            hook(known)
        except Exception as error:  # noqa: BLE001  anybody's code
            why = f"it wants more of {known.asked!r}, {error}" if known.asked else f"it fails, {error!r}"
    if why:
        name, value = next(iter(config_values(config).items()))
        raise SignatureError(
            f"kernel {given.name!r}: the configuration ({show_values(config_values(config))}) has a pre_hook, Python "
            "code that Triton runs before each launch; a library cannot, unless all it does is to set the block_shape "
            f"of tensor descriptors from values that are compiled in. Here {why}. Give the values without it, "
            f"config={{{name!r}: {value!r}, …}} or variants=[…], and do its work before you call"
        )
    descriptors = ((name, value) for name, value in dict.items(known) if type(value) is _Descriptor)
    return _with_shapes(given, wanted, {name: shape for name, one in descriptors if (shape := _shape_of(one))})


def _kinds(given: GivenKernel, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """Yield the run-time arguments that are described, and what is known of each when a library is built."""
    params = given.function.params
    if wanted.signature is not None:
        texts = types_by_name(given, wanted.signature)
        described = {p.name: texts.get(p.name, p.annotation_type) for p in params if not p.is_constexpr}
        yield from ((name, _kind_of_type(text, name in texts)) for name, text in described.items())
        return
    names = [param.name for param in params]
    for name, value in {**dict(zip(names, wanted.args, strict=False)), **wanted.named}.items():
        is_pointer = hasattr(value, "data_ptr") or type(value).__name__ == "dtype"
        kind = "null" if value is None else "pointer" if is_pointer else "other"
        yield name, "descriptor" if hasattr(value, "block_shape") else kind


def _kind_of_type(text: object, is_given: bool) -> str:  # noqa: FBT001  None means two things
    if text is None and is_given:
        return "null"
    if not isinstance(text, str):
        return "other"
    return "descriptor" if text.startswith("tensordesc") else "pointer" if text.startswith("*") else "other"


def _with_shapes(given: GivenKernel, wanted: Wanted, shapes: Mapping[str, Sequence[int]]) -> Wanted:
    """Return what is wanted with other block shapes, in the signature or in the example arguments."""
    signature, args, named = wanted.signature, wanted.args, wanted.named
    if signature is not None:
        texts = types_by_name(given, signature)
        signature = {**texts, **{name: _reshaped(texts[name], shape) for name, shape in shapes.items()}}
    else:
        places = {param.name: param.num for param in given.function.params}
        args = [_copied(value, shapes.get(name)) for value, name in zip(args, places, strict=False)]
        named = {name: _copied(value, shapes.get(name)) for name, value in named.items()}
    return wanted.with_arguments(signature, args, named)


def _reshaped(text: str, shape: Sequence[int]) -> str:
    return f"{text.partition('[')[0]}[{', '.join(map(str, shape))}]>"


def _copied(value: Any, shape: Sequence[int] | None) -> Any:
    if shape is None:
        return value
    other = copy.copy(value)
    other.block_shape = list(shape)
    return other


# ---- what stands for an argument --------------------------------------------------------------------------------


class StandIn:
    """A run-time argument that is there, and of which nobody knows more: whatever asks for more fails."""

    __hash__ = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        raise LookupError(f"its {name}")


def _refuse(*_: object) -> NoReturn:
    raise LookupError("its value")


for _name in ("bool", "eq", "ne", "str", "repr", "format", "dir", "sizeof", "reduce_ex", "setattr", "delattr"):
    setattr(StandIn, f"__{_name}__", _refuse)  # what every object answers; all else is a TypeError by itself


class _Pointer(StandIn):
    """A tensor, for a hook: it may ask whether it is a descriptor."""

    def __getattribute__(self, name: str) -> Any:
        return type(self) if name == "__class__" else super().__getattribute__(name)


class _Descriptor(StandIn):
    """A tensor descriptor, for a hook: it may ask whether it is one, and set its block shape."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return _descriptor_class()
        return object.__getattribute__(self, name) if _shape_of(self) and name == "block_shape" else _refuse(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "block_shape":
            raise LookupError(f"its {name}")
        object.__setattr__(self, name, value)


def _shape_of(descriptor: _Descriptor) -> Sequence[int] | None:
    shape: Sequence[int] | None = object.__getattribute__(descriptor, "__dict__").get("block_shape")
    return shape


def _descriptor_class() -> type:
    try:
        from triton.tools.tensor_descriptor import TensorDescriptor
    except ImportError:  # before Triton 3.4
        return _Descriptor
    found: type = TensorDescriptor
    return found


class _Known(dict[str, Any]):
    """The arguments as a function of the user's sees them; remembers which it got, or not, that is not known."""

    def __init__(self, given: GivenKernel, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.of_the_call = frozenset(param.name for param in given.function.params if not param.is_constexpr)
        self.asked = ""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if StandIn in type(value).__mro__:
            self.asked = name
        return value

    def __missing__(self, name: str) -> NoReturn:
        self.asked = name
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Take a default for an argument of the call as no answer: it would hide that the argument is not known."""
        return self[name] if name in self or name in self.of_the_call else default


# ---- what a hook may do -----------------------------------------------------------------------------------------


def _acts(function: Any, seen: set[int]) -> Iterator[str]:
    """Yield what a function uses that may act, or look, outside of its arguments."""
    if not isinstance(function, FunctionType):
        yield f"it is a {type(function).__name__}, which nobody can read"
        return
    if id(function) in seen:
        return
    seen.add(id(function))
    code = function.__code__
    yield from (f"it says {what}" for part in codes_in(code) for what in _stores(part, code.co_freevars))
    names = {name for part in codes_in(code) for name in part.co_names}
    scope = {**{name: getattr(builtins, name, None) for name in names}, **dict(outer_names(function))}
    scope |= {f"default {n}": value for n, value in enumerate(function.__defaults__ or ())}
    scope |= function.__kwdefaults__ or {}
    for name, value in scope.items():
        if isinstance(value, FunctionType) and not _is_tritons(value):
            yield from _acts(value, seen)
        elif not _is_pure(value, names):
            yield f"it uses {name!r}, which is a {type(value).__name__}"


def _is_pure(value: Any, names: set[str]) -> bool:
    if isinstance(value, ModuleType):
        home = value.__name__.partition(".")[0]
        used = [name for name in names if hasattr(value, name)]
        return home == "math" or (home == "triton" and all(name in _PURE_OF_TRITON for name in used))
    is_plain = value is None or isinstance(value, bool | int | float | str)
    is_tuple = isinstance(value, tuple) and all(_is_pure(item, names) for item in value)
    return is_plain or is_tuple or id(value) in _PURE or (_is_tritons(value) and value.__name__ in _PURE_OF_TRITON)


def _is_tritons(value: Any) -> bool:
    return callable(value) and str(getattr(value, "__module__", "")).partition(".")[0] == "triton"


def _stores(code: CodeType, outer: Collection[str]) -> Iterator[str]:
    """Yield what a piece of code writes, or loads, outside of the function it belongs to."""
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name in _ACTS_OUTSIDE or (name in ("STORE_DEREF", "DELETE_DEREF") and instruction.argval in outer):
            yield f"{name.lower()} {instruction.argval!r}"
