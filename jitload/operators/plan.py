"""The definition of an operator: its schema, and the Python source of its kernel and its fake function."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from jitload.errors import LaunchSpecError
from jitload.expressions.python import to_python
from jitload.operators.outputs import Allocator, field_of, scope_of
from jitload.operators.signature import Argument, Signature, check_names


class Plan(NamedTuple):
    """The definition of an operator.

    Attributes:
        name: The qualified name, `my::add`.
        signature: The arguments and results of the function that the operator calls.
        inputs: The arguments of the operator.
        schema: The operator's schema, without the name.
        source: The Python source of the functions `launch`, `impl` and `fake`.
    """

    name: str
    signature: Signature
    inputs: tuple[Argument, ...]
    schema: str
    source: str

    @property
    def written(self) -> tuple[str, ...]:
        """The names of the arguments that the operator writes to."""
        return tuple(argument.name for argument in self.inputs if argument.is_written)


def make_plan(
    name: str, signature: Signature, out: Mapping[str, str], unwritten: Sequence[str], *, has_fake: bool = False
) -> Plan:
    """Return the definition of an operator. Nothing is registered.

    If `has_fake` is true, the user's own fake function describes the results, instead of rules.
    """
    function, arguments = signature.name, signature.arguments
    check_names(unwritten, arguments, function=function, field="unwritten")
    if has_fake:
        _check_fake(signature, out)
    elif signature.returns:
        _check_results(signature, out)
    else:
        check_names(out, arguments, function=function, field="out")
    if both := [item for item in unwritten if item in out]:
        problem = f"{both[0]!r} is also in out, so the function writes to it: leave it out of one of the two"
        raise LaunchSpecError(problem, kernel=function, field="unwritten")
    returned = [result.name for result in signature.returns] if has_fake else list(out)
    _check_has_effect(signature, returned, unwritten)
    inputs = tuple(
        a._replace(is_written=False, declaration=re.sub(r"\(\w+!\)", "", a.declaration)) if a.name in unwritten else a
        for a in arguments
        if a.name not in out
    )
    allocator = Allocator(function, [*arguments, *signature.returns], inputs)
    sources = {key: allocator.allocate(key, rule) for key, rule in out.items()}
    allocations = {key: _allocation(name, key, out[key], source, inputs) for key, (source, _) in sources.items()}
    needs_device = bool(out) and not allocator.model and not allocator.has_device
    keywords = [argument.declaration for argument in inputs if argument.keyword]
    keywords += ["Device? device=None"] if needs_device else []
    declarations = [argument.declaration for argument in inputs if not argument.keyword]
    declarations += ["*", *keywords] if keywords else []
    optional = {a.name for a in signature.returns if a.is_nullable}
    optional |= {key for key, (_, may_be_none) in sources.items() if may_be_none}
    results = [f"Tensor{'?' * (name in optional)}" for name in returned]
    returns = results[0] if len(results) == 1 else f"({', '.join(results)})"
    schema = f"({', '.join(declarations)}) -> {returns}"
    source = _write_source(name, signature, inputs, allocations, needs_device=needs_device)
    return Plan(name, signature, inputs, schema, source)


def _allocation(operator: str, name: str, rule: str, source: str, inputs: Sequence[Argument]) -> str:
    """Return Python code that allocates an output. If the allocation fails, the code's error names the rule."""
    used = [a for a in inputs if (a.is_tensor or a.is_nullable) and re.search(rf"\ba_{a.name}\b", source)]
    values = f"{{{', '.join(f'{a.name!r}: a_{a.name}' for a in used)}}}"
    optional = tuple(a.name for a in used if a.is_nullable)
    text = f"{field_of(name)} = {rule!r}"
    return f"""\
    try:
        a_{name} = {source}
    except (AttributeError, IndexError, TypeError, ZeroDivisionError) as error:
        raise allocation_error({operator!r}, {text!r}, error, {values}, {optional}) from None"""


def _check_has_effect(signature: Signature, out: Sequence[str], unwritten: Sequence[str]) -> None:
    """Raise LaunchSpecError for an operator that returns and writes no tensor. torch.compile would drop the call."""
    if not out and not any(argument.is_written and argument.name not in unwritten for argument in signature.arguments):
        raise LaunchSpecError(
            "it neither returns a tensor nor writes to one, so torch would leave it out of compiled programs",
            kernel=signature.name, hint="Let it write to a tensor: a pointer that is not const, or Tensor(a!)",
        )  # fmt: skip


def _check_fake(signature: Signature, out: Mapping[str, str]) -> None:
    """Raise LaunchSpecError if the operator has no results that a fake function could describe, or also has rules."""
    if out:
        problem = "fake= describes all results, so there are no rules: leave one of fake= and out= out"
        raise LaunchSpecError(problem, kernel=signature.name, field="fake")
    if not signature.returns:
        raise LaunchSpecError(
            "fake= describes the tensors that the function returns, but its schema has none",
            kernel=signature.name, field="fake", hint='Name them in the schema: schema="(Tensor x) -> (Tensor y)"',
        )  # fmt: skip


def _check_results(signature: Signature, out: Mapping[str, str]) -> None:
    """Raise LaunchSpecError unless the keys of `out` are the names of the function's results, in the same order."""
    declared = [result.name for result in signature.returns]
    if both := {argument.name for argument in signature.arguments}.intersection(declared):
        problem = f"{min(both)!r} is the name of both an argument and a result"
        raise LaunchSpecError(problem, kernel=signature.name, field="schema")
    if list(out) != declared:
        names = ", ".join(declared)
        raise LaunchSpecError(
            f"it must have a rule for each result in the schema, in this order: {names}",
            kernel=signature.name, field="out", hint='schema="(Tensor x) -> (Tensor y)", out={"y": "like x"}',
        )  # fmt: skip


_SOURCE = """\
import torch
from torch import contiguous_format, empty, empty_like, is_grad_enabled, zeros, zeros_like
from torch._C import _any_requires_grad, _increment_version
from torch.autograd import forward_ad

from jitload.operators.checks import check_requirement, check_results, copy_if_overlapping, is_alias_of
from jitload.operators.graphs import increment_versions
from jitload.operators.outputs import allocation_error

def launch({parameters}):
{keywords}{launch}

def impl({parameters}):
    if (_any_requires_grad({tensors}) and is_grad_enabled()) or forward_ad._current_level >= 0:
        return _without_gradient({passed})
{keywords}{launch}

def fake({parameters}):
{keywords}{fake}
"""


def _write_source(
    name: str, signature: Signature, inputs: Sequence[Argument], allocations: Mapping[str, str], *, needs_device: bool
) -> str:
    """Return the Python source of the functions `launch`, `impl` and `fake`.

    Torch passes keyword-only arguments by their names, which the functions' other names must not collide with.
    """
    tensors = [f"a_{argument.name}" for argument in inputs if argument.has_tensors]
    names = [f"a_{argument.name}" for argument in inputs if not argument.keyword]
    parameters = [f"a_{a.name}=_default_{a.name}" if a.default else f"a_{a.name}" for a in inputs if not a.keyword]
    extra = ["**keywords"] if needs_device or len(names) < len(inputs) else []
    keywords = [_read_keyword(argument) for argument in inputs if argument.keyword]
    keywords += ["    device = keywords.get('device')\n"] if needs_device else []
    results = f"    return {', '.join(f'a_{name}' for name in allocations)}" if allocations else "    return None"
    arguments = ", ".join(
        f"{a.name}=" * bool(a.keyword) + (f"_to_device(a_{a.name})" if a.kind == "device" else f"a_{a.name}")
        for a in signature.arguments
    )
    optional = tuple(result.is_nullable for result in signature.returns)
    if signature.returns and not allocations:
        passed = ", ".join([*names, *(f"{a.name}=a_{a.name}" for a in inputs if a.keyword)])
        results = f"    return check_results(_fake({passed}), None, {f'{name}(), fake='!r}, {optional})"
    if signature.returns:
        checks = f"{_tuple(tensors)}, {f'{name}()'!r}, {optional}"
        launch = [*_copy_inputs(inputs), f"    return check_results(_function({arguments}), {checks})"]
    else:
        steps = [*_copy_inputs(inputs), *_count_versions(inputs)]
        launch = [*allocations.values(), *steps, f"    _function({arguments})", results]
    return _SOURCE.format(
        parameters=", ".join([*parameters, *extra]),
        passed=", ".join([*names, *extra]),
        tensors=", ".join(tensors),
        keywords="".join(keywords),
        launch="\n".join(launch),
        fake="\n".join([*allocations.values(), f"    _prepare({_tuple(tensors)})", *_requirements(signature), results]),
    )


def _requirements(signature: Signature) -> Iterator[str]:
    """Yield Python lines that check what the function requires."""
    scope = scope_of(signature.arguments)
    for text, own in signature.requires:
        code = to_python(own, scope, kernel=signature.name, field="requires")
        values: list[str] = []
        match ast.parse(code, mode="eval").body:
            case ast.Call(ast.Name("_int"), [ast.Compare(left, [op], [right])]) if not isinstance(
                op, ast.Is | ast.IsNot
            ):
                values = [ast.unparse(left), ast.unparse(right)]
        yield f"    check_requirement({signature.name!r}, {text!r}, lambda: {code}, lambda: {_tuple(values)})"


def _read_keyword(argument: Argument) -> str:
    keyword = repr(argument.keyword)
    value = f"keywords.get({keyword}, _default_{argument.name})" if argument.default else f"keywords[{keyword}]"
    return f"    a_{argument.name} = {value}\n"


def _tuple(names: Sequence[str]) -> str:
    return f"({''.join(f'{name}, ' for name in names)})"


def _copy_inputs(inputs: Sequence[Argument]) -> Iterator[str]:
    """Yield Python lines that copy inputs that overlap a written tensor, because compiled programs copy them, too."""
    for argument, written in product(inputs, inputs):
        if argument.has_tensors and written.is_written and not argument.is_written:
            pair = f"(a_{argument.name}, a_{written.name})"
            is_plain = all(a.is_tensor and not a.is_nullable for a in (argument, written))
            yield f"    {f'if is_alias_of{pair}: ' * is_plain}a_{argument.name} = copy_if_overlapping{pair}"


def _count_versions(inputs: Sequence[Argument]) -> Iterator[str]:
    """Yield Python lines that increment the versions of written tensors, because autograd checks these versions."""
    for argument in inputs:
        if argument.is_written:
            is_plain = argument.is_tensor and not argument.is_nullable
            function = "_increment_version((a_{},))" if is_plain else "increment_versions(a_{})"
            yield f"    {function.format(argument.name)}"
