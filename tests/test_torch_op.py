"""`jitload.torch_op`: schemas, fake functions, gradients and compiled graphs, on the CPU."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch_op_kernels
from torch_op_kernels import CASES, X

import jitload


@pytest.fixture(scope="module")
def mod():
    return torch_op_kernels.load()


@pytest.fixture(scope="module")
def operators(mod):
    return {name: jitload.torch_op(f"twenty::{name}", mod[name], **case.options) for name, case in CASES.items()}


def clones(args):
    return tuple(arg.clone() if isinstance(arg, torch.Tensor) and arg.is_contiguous() else arg for arg in args)


def call_function(mod, name, args):
    """Call the typed function itself on arguments of an operator that only writes to them."""
    mod[name](*args)
    return args


@pytest.mark.parametrize("name", CASES)
def test_signatures_become_schemas(operators, name):
    assert str(operators[name]._schema) == f"twenty::{name}{CASES[name].schema}"


@pytest.mark.parametrize("name", CASES)
def test_operators_compute(operators, mod, name):
    case, args = CASES[name], clones(CASES[name].args)
    result = operators[name](*args)
    if case.expected is None:
        torch.testing.assert_close(args, call_function(mod, name, clones(case.args)))
        assert not torch.equal(args[0], case.args[0]) or not torch.equal(args[1], case.args[1])
    else:
        torch.testing.assert_close(result, case.expected(*args))


@pytest.mark.parametrize("name", CASES)
def test_opcheck_passes(operators, name):
    results = torch.library.opcheck(operators[name], CASES[name].args)
    assert set(results.values()) == {"SUCCESS"}
    assert len(results) == 4


@pytest.mark.parametrize("name", CASES)
def test_whole_graphs_are_compiled(operators, name):
    case, operator = CASES[name], operators[name]

    def program(*args):
        result = operator(*args)
        values = args if result is None else result if isinstance(result, tuple) else (result,)
        return [value + 1 if isinstance(value, torch.Tensor) else value for value in values]

    eager_args, args = clones(case.args), clones(case.args)
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(compiled(*args), program(*eager_args))
    torch.testing.assert_close(args, eager_args)
