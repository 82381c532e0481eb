"""Runs the Python functions of a kernel, `@triton.heuristics` and a `pre_hook`, while the kernel's library is built.

Triton runs these functions before each launch, which a library cannot do. But what they compute from compiled-in values
is the same at each launch, so jitload runs them once, with stand-ins for the run-time arguments. A heuristic can find
out only whether an argument is None, and the class of an example argument. A hook can find out, too, whether an
argument is a tensor descriptor, and may set its block shape. Any other use of an argument is an error.
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
from jitload.triton.kernel import CompileSpec, TritonKernel, config_values, example_arguments, show_values
from jitload.triton.key import code_objects, outer_names
from jitload.triton.plan import types_by_name

# The builtin functions that a hook may call; any other one might have effects outside the hook.
_PURE_FUNCTIONS = (isinstance, len, min, max, int, bool, range, list, tuple, abs, hasattr, math.ceil)
_PURE_IDS = frozenset(map(id, _PURE_FUNCTIONS))
_PURE_IN_TRITON = ("cdiv", "next_power_of_2", "TensorDescriptor")
_OPCODES_WITH_EFFECTS = ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME")


def apply_heuristics(
    kernel: TritonKernel, spec: CompileSpec, values: Mapping[str, Any], explicit: Collection[str]
) -> dict[str, Any]:
    """Return a copy of `values`, updated with the results of the functions of `@triton.heuristics`.

    `values` are the compiled-in values and options. Each function computes the value of one name. Functions for the
    names in `explicit` are skipped.
    """
    results = dict(values)
    stand_ins = _stand_ins(kernel, spec, _TypedStandIn, StandIn)
    unknown: dict[str, str] = {}
    failed: set[str] = set()
    for name, function in kernel.heuristics.items():
        if name in explicit:
            continue
        arguments = _Arguments(kernel, {**stand_ins, **results})
        try:
            results[name] = function(arguments)
            if StandIn in type(results[name]).__mro__:
                _refuse_value()
        except Exception as error:
            if not arguments.unknown:
                raise JitLoadError(f"kernel {kernel.name!r}: its heuristic for {name!r} failed: {error}") from error
            # If all unknown names are heuristics that have failed before, this one may fail only because of them.
            if sources := [source for source in arguments.unknown if source not in failed]:
                unknown[name] = sources[-1]
            failed.add(name)
            results[name] = StandIn()
    if unknown:
        raise _run_time_error(kernel.name, unknown)
    return results


def _run_time_error(kernel: str, unknown: Mapping[str, str]) -> SignatureError:
    """Return the error for heuristics that compute constexprs from run-time arguments."""
    sources = ", ".join(f"{name!r} from the argument {argument!r}" for name, argument in unknown.items())
    values = ", ".join(f"{name!r}: …" for name in unknown)
    verb = "heuristic computes" if len(unknown) == 1 else "heuristics compute"
    return SignatureError(
        f"kernel {kernel!r}: its {verb} {sources}, whose value is known only at a call: pass constexprs={{{values}}}, "
        "or build variants"
    )


def apply_pre_hook(kernel: TritonKernel, spec: CompileSpec, config: Any, values: Mapping[str, Any]) -> CompileSpec:
    """Run a configuration's pre_hook, and return the spec with the block shapes that the hook sets in descriptors."""
    hook = getattr(config, "pre_hook", None)
    if hook is None:
        return spec
    # A pointer is no descriptor, whatever its class is.
    stand_ins = _stand_ins(kernel, spec, _DescriptorStandIn, lambda: _TypedStandIn(object))
    arguments = _Arguments(kernel, {**stand_ins, **values})
    problem = next(_effects(hook, set()), "")
    if not problem:
        try:
            hook(arguments)
        except Exception as error:  # noqa: BLE001  the user's code
            problem = (
                f"it uses {arguments.unknown[-1]!r}, which is unknown at the build ({error})"
                if arguments.unknown
                else f"it fails with {error!r}"
            )
    if problem:
        name, value = next(iter(config_values(config).items()))
        raise SignatureError(
            f"kernel {kernel.name!r}: the configuration ({show_values(config_values(config))}) has a pre_hook, Python "
            "code that Triton runs before each launch. jitload supports only hooks that set the block_shape of tensor "
            f"descriptors from values that are compiled in, but this hook is different: {problem}. Pass the values of "
            f"the configuration without the hook, config={{{name!r}: {value!r}, …}} or variants=[…], and do the hook's "
            "work before the call."
        )
    descriptors = ((name, value) for name, value in dict.items(arguments) if type(value) is _DescriptorStandIn)
    return _with_block_shapes(kernel, spec, {name: shape for name, value in descriptors if (shape := _shape_of(value))})


def _stand_ins(
    kernel: TritonKernel,
    spec: CompileSpec,
    make_descriptor: Callable[[type], StandIn],
    make_pointer: Callable[[], StandIn],
) -> dict[str, Any]:
    """Return stand-ins for the run-time arguments, and None for those that are always None.

    `make_descriptor` makes one for a tensor descriptor of a class, and `make_pointer` one for a pointer of which only
    the type of its elements is known.
    """
    stand_ins: dict[str, Any] = {}
    for name, value in example_arguments(kernel, spec).items():
        if hasattr(value, "block_shape"):
            stand_ins[name] = make_descriptor(type(value))
        elif type(value).__name__ == "dtype":
            stand_ins[name] = make_pointer()
        else:
            stand_ins[name] = None if value is None else _TypedStandIn(type(value))
    if spec.signature is None:
        return stand_ins
    types = types_by_name(kernel, spec.signature)
    for name, text in ((p.name, types.get(p.name, p.annotation_type)) for p in kernel.params if not p.is_constexpr):
        if isinstance(text, str) and text.startswith("tensordesc"):
            from triton.tools.tensor_descriptor import TensorDescriptor

            stand_ins[name] = make_descriptor(TensorDescriptor)
        elif isinstance(text, str) and text.startswith("*"):
            stand_ins[name] = make_pointer()
        else:
            stand_ins[name] = None if text is None and name in types else StandIn()
    return stand_ins


def _with_block_shapes(kernel: TritonKernel, spec: CompileSpec, shapes: Mapping[str, Sequence[int]]) -> CompileSpec:
    """Return the spec with the given block shapes, in the signature or in copies of the example arguments."""
    if spec.signature is not None:
        types = types_by_name(kernel, spec.signature)
        reshaped = {
            name: f"{types[name].partition('[')[0]}[{', '.join(map(str, shape))}]>" for name, shape in shapes.items()
        }
        return spec._replace(signature={**types, **reshaped})
    names = [param.name for param in kernel.params]
    args = tuple(_reshape_argument(value, shapes.get(name)) for value, name in zip(spec.args, names, strict=False))
    named_args = {name: _reshape_argument(value, shapes.get(name)) for name, value in spec.named_args.items()}
    return spec._replace(args=args, named_args=named_args)


def _reshape_argument(value: Any, shape: Sequence[int] | None) -> Any:
    if shape is None:
        return value
    descriptor = copy.copy(value)
    descriptor.block_shape = list(shape)
    return descriptor


# ---- stand-ins for arguments -----------------------------------------------------------------------------------


class StandIn:
    """A stand-in for a run-time argument that is not None. Using its value or an attribute raises an exception."""

    __hash__ = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        raise LookupError(f"its {name}")


def _refuse_value(*_: object) -> NoReturn:
    raise LookupError("its value")


for _name in ("bool", "eq", "ne", "str", "repr", "format", "dir", "sizeof", "reduce_ex", "setattr", "delattr"):
    setattr(StandIn, f"__{_name}__", _refuse_value)  # `object` defines these; other operators raise a TypeError anyway


class _TypedStandIn(StandIn):
    """A stand-in for an argument of a known class. A heuristic or a hook may use `isinstance()` on it."""

    def __init__(self, argument_class: type) -> None:
        object.__setattr__(self, "argument_class", argument_class)

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return object.__getattribute__(self, "argument_class")
        return super().__getattribute__(name)


class _DescriptorStandIn(_TypedStandIn):
    """A stand-in for a tensor descriptor. A hook may also set its block shape."""

    def __getattribute__(self, name: str) -> Any:
        if name == "block_shape" and _shape_of(self):
            return object.__getattribute__(self, name)
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "block_shape":
            raise LookupError(f"its {name}")
        object.__setattr__(self, name, value)


def _shape_of(descriptor: _DescriptorStandIn) -> Sequence[int] | None:
    shape: Sequence[int] | None = object.__getattribute__(descriptor, "__dict__").get("block_shape")
    return shape


class _Arguments(dict[str, Any]):
    """The mapping for a heuristic or a hook. `unknown` lists the names without a known value that it looked up."""

    def __init__(self, kernel: TritonKernel, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.run_time = frozenset(param.name for param in kernel.params if not param.is_constexpr)
        self.unknown: list[str] = []

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if StandIn in type(value).__mro__:
            self.unknown.append(name)
        return value

    def __missing__(self, name: str) -> NoReturn:
        self.unknown.append(name)
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value or the default. Raise KeyError for a missing run-time argument: a call may still pass it."""
        return self[name] if name in self or name in self.run_time else default


# ---- what a hook may use ---------------------------------------------------------------------------------------


def _effects(function: Any, visited: set[int]) -> Iterator[str]:
    """Yield a text for each way in which a function may read or change something besides its arguments."""
    if not isinstance(function, FunctionType):
        yield f"it is a {type(function).__name__}, which cannot be inspected"
        return
    if id(function) in visited:
        return
    visited.add(id(function))
    codes = list(code_objects(function.__code__))
    for code in codes:
        yield from (
            f"it contains the instruction {instruction}" for instruction in _stores(code, function.__code__.co_freevars)
        )
    names = {name for code in codes for name in code.co_names}
    scope = {**{name: getattr(builtins, name, None) for name in names}, **dict(outer_names(function))}
    scope |= {f"default {index}": value for index, value in enumerate(function.__defaults__ or ())}
    scope |= function.__kwdefaults__ or {}
    for name, value in scope.items():
        if isinstance(value, FunctionType) and not _is_from_triton(value):
            yield from _effects(value, visited)
        elif not _is_pure(value, names):
            yield f"it uses {name!r}, which is a {type(value).__name__}"


def _stores(code: CodeType, free_variables: Collection[str]) -> Iterator[str]:
    """Yield a text for each instruction in `code` that imports a module or changes a variable outside the function."""
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        is_outer_store = name in ("STORE_DEREF", "DELETE_DEREF") and instruction.argval in free_variables
        if is_outer_store or name in _OPCODES_WITH_EFFECTS:
            yield f"{name} {instruction.argval!r}"


def _is_pure(value: Any, names: set[str]) -> bool:
    if isinstance(value, ModuleType):
        package = value.__name__.partition(".")[0]
        used = [name for name in names if hasattr(value, name)]
        return package == "math" or (package == "triton" and all(name in _PURE_IN_TRITON for name in used))
    if isinstance(value, tuple):
        return all(_is_pure(item, names) for item in value)
    is_plain = value is None or isinstance(value, bool | int | float | str)
    return is_plain or id(value) in _PURE_IDS or (_is_from_triton(value) and value.__name__ in _PURE_IN_TRITON)


def _is_from_triton(value: Any) -> bool:
    return callable(value) and str(getattr(value, "__module__", "")).partition(".")[0] == "triton"
