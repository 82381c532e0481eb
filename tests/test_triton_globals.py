"""Values from outside of a Triton kernel: compiled in as they are now, and part of every key."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
import triton.language as tl
import triton_outer as outer
from test_load_triton import parts
from triton_support import ARCH

import jitload
from jitload.triton.globals import outer_values
from jitload.triton.versions import find_triton

NEEDS_FUNCTIONS = pytest.mark.skipif(
    not hasattr(triton, "constexpr_function"), reason="this Triton has no constexpr_function"
)


def code(kernel: Any, **constexprs: Any) -> bytes:
    return jitload.extract_triton(kernel, signature={"x_ptr": "*i32"}, constexprs=constexprs, arch=ARCH).data


def check(kernel: Any, change: Any, **constexprs: Any) -> None:
    """See that machine code and key are others after a change, and the same code without one."""
    before, key = code(kernel, **constexprs), parts(kernel, signature={"x_ptr": "*i32"}, constexprs=constexprs)
    assert code(kernel, **constexprs) == before
    change()
    assert code(kernel, **constexprs) != before
    assert parts(kernel, signature={"x_ptr": "*i32"}, constexprs=constexprs) != key


def test_a_global_of_a_function_that_is_called(monkeypatch: pytest.MonkeyPatch):
    check(outer.by_a_call, lambda: monkeypatch.setattr(outer, "CALLED", tl.constexpr(9)))


def set_default(monkeypatch: pytest.MonkeyPatch, function: triton.JITFunction, value: int) -> None:
    """Make a function what it is in another run, after CALLED was edited. Triton 3.9 reads the signature instead."""
    monkeypatch.setattr(function.fn, "__defaults__", (tl.constexpr(value),))
    monkeypatch.setattr(function, "signature", inspect.signature(function.fn))


def test_a_default_of_a_function_that_is_called(monkeypatch: pytest.MonkeyPatch):
    assert outer_values(outer.by_a_default) is not None
    check(outer.by_a_default, lambda: set_default(monkeypatch, outer.with_a_default, 9))


def test_a_function_with_a_default_that_is_a_constexpr(monkeypatch: pytest.MonkeyPatch):
    check(outer.by_a_constexpr, lambda: set_default(monkeypatch, outer.with_a_default, 9), made=outer.with_a_default)


def test_a_global_of_the_kernel_itself(monkeypatch: pytest.MonkeyPatch):
    check(outer.by_name, lambda: monkeypatch.setattr(outer, "CALLED", tl.constexpr(9)))


@NEEDS_FUNCTIONS
def test_a_list_that_a_constexpr_function_reads(monkeypatch: pytest.MonkeyPatch):
    assert outer_values(outer.by_a_constexpr_function) is not None
    check(outer.by_a_constexpr_function, lambda: monkeypatch.setattr(outer, "LISTED", [9]))


@NEEDS_FUNCTIONS
def test_a_mapping_that_a_constexpr_function_reads(monkeypatch: pytest.MonkeyPatch):
    assert outer_values(outer.by_a_mapping) is not None
    check(outer.by_a_mapping, lambda: monkeypatch.setitem(outer.MAPPED, "three", 9))


@NEEDS_FUNCTIONS
def test_an_object_that_nobody_sees_into(monkeypatch: pytest.MonkeyPatch):
    assert outer_values(outer.by_an_object) is None
    first, second = (parts(outer.by_an_object, signature="*i32") for _ in range(2))
    assert first != second  # never found again
    check(outer.by_an_object, lambda: monkeypatch.setattr(outer.OBJECT, "shift", 9))


@pytest.mark.skipif(not hasattr(getattr(outer, "Pair", None), "hash_attrs"), reason="its aggregates are others")
def test_a_default_of_the_constructor_of_an_aggregate(monkeypatch: pytest.MonkeyPatch):
    constructor = outer.Pair.hash_attrs[0].fn
    assert outer_values(outer.by_an_aggregate) is not None
    check(outer.by_an_aggregate, lambda: monkeypatch.setattr(constructor, "__defaults__", (tl.constexpr(9),)))


@NEEDS_FUNCTIONS
def test_a_constexpr_function_with_an_object_that_nobody_sees_into():
    first, second = (
        parts(outer.by_a_constexpr, signature={"x_ptr": "*i32"}, constexprs={"made": outer.with_an_object})
        for _ in range(2)
    )
    assert first != second  # never found again


def test_a_text_is_not_the_number_that_it_spells():
    assert code(outer.told, what=3) != code(outer.told, what="3")
    assert code(outer.told, what="None") != code(outer.told, what=None)
    assert code(outer.told, what="True") != code(outer.told, what=True)


def test_a_global_of_a_function_that_is_a_constexpr(monkeypatch: pytest.MonkeyPatch):
    check(
        outer.by_a_constexpr,
        lambda: monkeypatch.setattr(outer, "CALLED", tl.constexpr(9)),
        made=outer.helper,
    )


@pytest.mark.skipif(find_triton().number < (3, 4), reason="Triton sees the members of a constexpr since 3.4")
def test_a_constexpr_whose_text_does_not_change(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outer.Anything, "__repr__", lambda _: "Anything()")
    made = outer.Anything()
    made.shift = tl.constexpr(3)
    check(outer.by_a_member, lambda: setattr(made, "shift", tl.constexpr(9)), made=made)


def test_values_that_contain_themselves():
    loop: list[Any] = []
    loop.append(loop)
    scope = {"loop": loop, "__name__": "somewhere"}
    exec("def f():\n    return loop", scope)
    assert outer_values(scope["f"]) is None
