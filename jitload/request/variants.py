"""Expands the launches of a request: one launch for each dtype and each variant that a library contains."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from jitload.element_types import CPP_TYPES, ELEMENT_TYPES
from jitload.errors import LaunchSpecError
from jitload.request.launch import Launch
from jitload.request.request import Request
from jitload.request.tune import Choice, Tune, Value, Values, Variant, replace_names, spelled

Dtypes = tuple[tuple[str, str], ...]
_NAME = re.compile(r"\{([A-Za-z_]\w*)\}")  # of a value of a `Tune`
_DTYPE = re.compile(r"\{(\w+)\.dtype\}")
_HEADERS = {row.cpp: row.header for row in ELEMENT_TYPES.values() if row.header}


def expand(request: Request) -> Request:
    """Return the request with one launch for each kernel of each function, and the headers of types that dtypes chose.

    Raises:
        LaunchSpecError: The file of measurements does not fit a `Tune`.
    """
    if not any(launch.tune is not None or _DTYPE.search(launch.kernel or "") for _, launch in request.functions or ()):
        return request
    functions = tuple(pair for name, launch in request.functions or () for pair in _launches(name, launch, request))
    texts = " ".join(launch.kernel or "" for _, launch in functions)
    headers = {header for name, header in _HEADERS.items() if name in texts}
    missing = sorted(header for header in headers if not any(header in text for _, text in request.pieces))
    lines = "".join(f"#include <{header}>\n" for header in missing)
    pieces = (("dtypes", lines), *request.pieces) if lines else request.pieces
    return request._replace(functions=functions, pieces=pieces, tuned=None)


def _launches(name: str, launch: Launch, request: Request) -> Iterator[tuple[str, Launch]]:
    """Yield the launches of a function: for each combination of dtypes, the first variant and the chosen ones."""
    from jitload.request.rows import Row, with_choices  # a cache hit does not need it

    tune = launch.tune
    digest = source_digest(request, name, launch) if tune else ""
    arguments = dict.fromkeys(_DTYPE.findall(launch.kernel or ""))
    for combination in itertools.product(launch.dtypes, repeat=len(arguments)):
        dtypes = tuple(zip(arguments, combination, strict=True))
        if not isinstance(tune, Tune):
            yield name, launch if tune else specialize(launch, name, (), dtypes)
            continue
        like = Row(function=name, gpu="", dtypes=dtypes, values=(), number=0, source=digest)
        untuned = Choice(tune.key, tune.nearest, measures=tune.measure is not None)
        space = tune.space(request.archs)
        choice = with_choices(untuned, request.tuned, like, space)
        for values in dict.fromkeys((space[0], *(values for *_, values in choice.chosen))):
            yield name, specialize(launch, name, values, dtypes, choice)
        _check_used(name, launch, tune, request)


def _check_used(name: str, launch: Launch, tune: Tune, request: Request) -> None:
    """Raise LaunchSpecError if a value is used nowhere, such as one that is meant to be an argument of `Tune`."""
    text = repr((replace(launch, tune=None, doc=None), request.options, request.cpu_flags))
    if unused := next((value for value, _ in tune.values if not re.search(rf"\b{value}\b", text)), None):
        problem = f"the value {unused!r} stands in no expression of the Launch, in its kernel= or in an option"
        raise LaunchSpecError(problem, kernel=name, field="tune")


def specialize(launch: Launch, name: str, values: Values, dtypes: Dtypes, choice: Choice | None = None) -> Launch:
    """Return the launch of a variant: with the values in place of their names.

    Raises:
        LaunchSpecError: The launch exceeds a limit of CUDA, for example if a block has too many threads.
    """
    numbers = dict(values)

    def number(value: Any) -> Any:
        return tuple(map(number, value)) if isinstance(value, tuple) else replace_names(value, numbers)

    types = {f"{argument}.dtype": CPP_TYPES[dtype] for argument, dtype in dtypes}
    kernel = fill(launch.kernel or "", {**numbers, **types}) or None
    if values and (unknown := _NAME.findall(kernel or "")):
        problem = f"there is no value {min(unknown)!r}, only {', '.join(numbers)}"
        raise LaunchSpecError(problem, kernel=name, field="kernel", expression=launch.kernel or "")
    try:
        return replace(
            launch,
            kernel=kernel,
            **{
                field: number(getattr(launch, field))
                for field in ("grid", "block", "cluster", "shared_bytes", "requires")
            },
            args={parameter: number(text) for parameter, text in launch.args.items()},
            tma=tuple((field, tma.substitute(number, dict(dtypes))) for field, tma in launch.tensor_maps),
            tune=Variant(values, dtypes, choice),
        )
    except LaunchSpecError as error:
        error.kernel = error.kernel or name
        raise


def fill(text: str, values: Mapping[str, Value]) -> str:
    """Return a text with the values in place of their names in braces. Other braces stay."""
    return re.sub(r"\{([\w.]+)\}", lambda match: spelled(values.get(match[1], match[0])), text)


def source_digest(request: Request, name: str, launch: Launch | None) -> str:
    """Return the digest of all that a variant's time depends on, except for its values and the device.

    A Triton kernel has no launch.
    """
    content: Any
    if request.triton is not None:
        content = [part for part in request.triton.parts if part[0] in ("kernel", "globals", "outer")]
    else:
        bare = launch and replace(launch, tune=None, doc=None)
        cubins = [cubin.data for cubin in request.cubins]
        content = (name, [text for _, text in request.pieces], request.options, bare, *cubins)
    return hashlib.sha256(repr(content).encode("utf-8", "surrogateescape")).hexdigest()


# ---- options ---------------------------------------------------------------------------------------------------------


def groups(request: Request) -> tuple[Request, ...]:
    """Return the parts of an expanded request that are compiled separately, because their options differ.

    A function without variants is compiled with the first part.
    """
    names = _NAME.findall(" ".join((*request.options, *request.cpu_flags)))
    parts: dict[Values, list[tuple[str, Launch]]] = {}
    for name, launch in request.functions or ():
        values = launch.tune.values if isinstance(launch.tune, Variant) else ()
        parts.setdefault(tuple(pair for pair in values if pair[0] in names), []).append((name, launch))
    plain = parts.pop((), [])
    if not parts:
        return (request,)
    next(iter(parts.values())).extend(plain)
    return tuple(
        request._replace(
            functions=tuple(functions),
            options=tuple(fill(option, dict(values)) for option in request.options),
            cpu_flags=tuple(fill(option, dict(values)) for option in request.cpu_flags),
        )
        for values, functions in parts.items()
    )
