"""Runs the functions of `@triton.heuristics` of a kernel while the kernel's library is built.

Triton runs these functions before each launch, which a library cannot do. But what they compute from compiled-in values
is the same at each launch, so jitload runs them once, with stand-ins for the run-time arguments. A heuristic can find
out only whether an argument is None. Any other use of an argument is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NoReturn

from jitload.errors import JitLoadError, SignatureError
from jitload.triton.kernel import CompileSpec, TritonKernel, example_arguments
from jitload.triton.plan import types_by_name


def apply_heuristics(
    kernel: TritonKernel, spec: CompileSpec, values: Mapping[str, Any], explicit: Collection[str]
) -> dict[str, Any]:
    """Return a copy of `values`, updated with the results of the functions of `@triton.heuristics`.

    `values` are the compiled-in values and options. Each function computes the value of one name. Functions for the
    names in `explicit` are skipped.
    """
    results = dict(values)
    stand_ins = {name: None if is_none else _StandIn() for name, is_none in _arguments(kernel, spec)}
    unknown: dict[str, str] = {}
    failed: set[str] = set()
    for name, function in kernel.heuristics.items():
        if name in explicit:
            continue
        arguments = _Arguments(kernel, {**stand_ins, **results})
        try:
            results[name] = function(arguments)
            if type(results[name]) is _StandIn:
                _refuse_value()
        except Exception as error:
            if not arguments.unknown:
                raise JitLoadError(f"kernel {kernel.name!r}: its heuristic for {name!r} failed: {error}") from error
            # If all unknown names are heuristics that have failed before, this one may fail only because of them.
            if sources := [source for source in arguments.unknown if source not in failed]:
                unknown[name] = sources[-1]
            failed.add(name)
            results[name] = _StandIn()
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


def _arguments(kernel: TritonKernel, spec: CompileSpec) -> Iterator[tuple[str, bool]]:
    """Yield the name of each run-time argument, and whether it is always None."""
    if spec.signature is None:
        yield from ((name, value is None) for name, value in example_arguments(kernel, spec).items())
        return
    types = types_by_name(kernel, spec.signature)
    for param in kernel.params:
        if not param.is_constexpr:
            yield param.name, types.get(param.name, "") is None


# ---- stand-ins for arguments -----------------------------------------------------------------------------------


class _StandIn:
    """A stand-in for a run-time argument that is not None. Using its value or an attribute raises an exception."""

    __hash__ = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        raise LookupError(f"its {name}")


def _refuse_value(*_: object) -> NoReturn:
    raise LookupError("its value")


for _name in ("bool", "eq", "ne", "str", "repr", "format", "dir", "sizeof", "reduce_ex", "setattr", "delattr"):
    setattr(_StandIn, f"__{_name}__", _refuse_value)  # `object` defines these; other operators raise a TypeError anyway


class _Arguments(dict[str, Any]):
    """The mapping for a heuristic. `unknown` lists the names without a known value that it looked up."""

    def __init__(self, kernel: TritonKernel, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.run_time = frozenset(param.name for param in kernel.params if not param.is_constexpr)
        self.unknown: list[str] = []

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if type(value) is _StandIn:
            self.unknown.append(name)
        return value

    def __missing__(self, name: str) -> NoReturn:
        self.unknown.append(name)
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value or the default. Raise KeyError for a missing run-time argument: a call may still pass it."""
        return self[name] if name in self or name in self.run_time else default
