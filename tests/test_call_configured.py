"""The forms of a call: `f[grid, block](…)`, a configured function that is kept, and keywords through `f.call`."""

import inspect
import re
from types import SimpleNamespace
from typing import Any

import pytest
from support.calls import array

import jitload
from jitload import Launch

SOURCE = 'extern "C" __global__ void f(const float* x, int n, double in) {}\n'


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    functions = {
        "f": Launch(grid=1, block=1, nullable="x"),
        "bare": Launch(kernel="f"),
        "computed": Launch(kernel="f", grid="n", block=1, args={"n": "x.numel()"}),
    }
    return jitload.load_inline("configured", cuda_sources=SOURCE, functions=functions, arch="sm_90a")


SHAPE = "takes [grid, block], [grid, block, shared_bytes] or [grid, block, shared_bytes, stream]"
STREAM = "stream must be an int, a torch or CuPy stream, or have __cuda_stream__"
ADDRESS = "stream must be an address: from 0 to 2**63 - 1"
WRONG: list[tuple[Any, type[Exception], str]] = [
    (1, TypeError, f" has no block: it {SHAPE}"),
    ("x", TypeError, f" {SHAPE}"),
    ((1, "x"), TypeError, ": block must be an int, got str"),
    ((True, 1), TypeError, ": grid must be an int, got bool"),
    (((), 1), TypeError, ": grid must have one to three dimensions, got 0"),
    ((1, (1, 1, 1, 1)), TypeError, ": block must have one to three dimensions, got 4"),
    ((2**63, 1), ValueError, f": grid does not fit 64 bits: {2**63}"),
    ((1, 1, "x"), TypeError, ": shared_bytes must be an int, got str"),
    ((1, 1, 1, True), TypeError, f": {STREAM}, got bool"), ((1, 1, 1, "x"), TypeError, f": {STREAM}, got str"),

    *(((1, 1, 1, handle), ValueError, f": {ADDRESS}") for handle in (-1, 2**63, 2**64)),
    ((1, 1, 1, SimpleNamespace(cuda_stream=-1)), ValueError, f": {ADDRESS}"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "kind", "text"), WRONG)
def test_a_wrong_configuration_is_refused(mod, stub_driver, key, kind, text):
    with pytest.raises(kind) as caught:
        mod.f[key]
    assert str(caught.value) == f"f[…]{text}"
    assert stub_driver.calls() == []


def test_a_configured_function_is_remembered(mod):
    function = mod.bare
    assert function[3, 32] is function[3, 32]
    assert function[(3, 1), (32,)] is function[(3, 1), (32,)]
    assert function[3, 32, 0, 0x10] is function[3, 32, 0, 0x10]
    assert function[3, 32] is not function[3, 33]
    assert function[3, 32] is not mod.f[3, 32]


def test_a_stream_that_moves_is_asked_each_time(mod, stub_driver):
    stream = SimpleNamespace(cuda_stream=0x10)
    mod.f[1, 1, 0, stream](None, 1, 1.0)
    stream.cuda_stream = 0x20
    mod.f[1, 1, 0, stream](None, 1, 1.0)
    assert [launch.stream for launch in stub_driver.launches()] == [0x10, 0x20]


def test_many_configurations_are_not_kept_for_ever(mod, stub_driver):
    for grid in range(1, 3000):
        mod.bare[grid, 1](array(), 1, 1.0)
    assert len(mod.bare._jitload_configured) <= 1024
    assert [launch.grid[0] for launch in stub_driver.launches()] == list(range(1, 3000))


def test_a_configuration_of_a_configured_function_takes_its_place(mod, stub_driver):
    mod.bare[2, 2][3, 4](array(), 1, 1.0)
    assert [(launch.grid[0], launch.block[0]) for launch in stub_driver.launches()] == [(3, 4)]


def test_keywords_go_through_call(mod, stub_driver):
    x = array()
    mod.f(x, 5, 0.5)
    mod.f.call(x, 5, 0.5)
    mod.f.call(x, in_=0.5, n=5)
    mod.f.call(in_=0.5, n=5, x=x)
    mod.f[1, 1].call(x=x, n=5, in_=0.5)
    assert len({launch.params for launch in stub_driver.launches()}) == 1
    assert len(stub_driver.launches()) == 5


@pytest.mark.parametrize(
    ("arguments", "keywords", "text"),
    [
        ((None, 1), {}, "missing a required argument: 'in_'"),
        ((None, 1, 1.0, 2), {}, "too many positional arguments"),
        ((None, 1, 1.0), {"n": 2}, "multiple values for argument 'n'"),
        ((None,), {"n": 1.5, "in_": 1.0}, "argument 'n' must be an int, got float"),
    ],
)
def test_wrong_keywords_are_refused(mod, stub_driver, arguments, keywords, text):
    with pytest.raises(TypeError, match=rf"^f\(\): {re.escape(text)}$"):
        mod.f.call(*arguments, **keywords)
    assert stub_driver.calls() == []


def test_unknown_keywords_are_named(mod, stub_driver):
    for arguments, keywords in (((None, 1), {"in_": 1.0, "m": 2}), ((None, 1), {"n": 1, "m": 2})):
        with pytest.raises(TypeError, match=r"^f\(\) has no argument 'm'; its arguments are x, n, in_$"):
            mod.f.call(*arguments, **keywords)
    with pytest.raises(TypeError, match=r"^f\(\) has no argument 'in', did you mean 'in_'\?$"):
        mod.f.call(None, 1, **{"in": 1.0})


def test_a_launch_as_for_cupy_is_told_the_brackets(mod):
    for extra in ((), (0,)):
        with pytest.raises(TypeError, match=r"^f\(\) takes the launch in brackets: f\[grid, block\]\(…\)$"):
            mod.f((4,), (256,), (None, 1, 1.0), *extra)


def test_computed_parameters_are_no_keywords(mod, stub_driver):
    assert list(inspect.signature(mod.computed).parameters) == ["x", "in_"]
    mod.computed.call(in_=1.0, x=array(size=3))
    assert [launch.grid for launch in stub_driver.launches()] == [(3, 1, 1)]
    with pytest.raises(TypeError, match=r"computed\(\) has no argument 'n'; its arguments are x, in_"):
        mod.computed.call(array(), 1.0, n=3)
