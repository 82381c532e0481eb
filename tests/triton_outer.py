"""Triton kernels that depend on values from outside which Triton's own key leaves out."""

import enum

import triton
import triton.language as tl
import triton_helpers as settings

CALLED = tl.constexpr(3)
LISTED = [{"three": 3}]


class Anything:
    def __init__(self):
        self.shift = 3


OBJECT = Anything()


@triton.jit
def helper(x):
    return x + CALLED


@triton.jit
def with_a_default(x, more: tl.constexpr = CALLED):
    return x + more


@triton.jit
def by_a_default(x_ptr):
    tl.store(x_ptr, with_a_default(tl.program_id(0)))


@triton.jit
def by_a_call(x_ptr):
    tl.store(x_ptr, helper(tl.program_id(0)))


@triton.jit
def by_a_constexpr_function(x_ptr):
    tl.store(x_ptr, tl.program_id(0) + of_the_list())


@triton.jit
def by_an_object(x_ptr):
    tl.store(x_ptr, tl.program_id(0) + of_the_object())


@triton.jit
def by_a_constexpr(x_ptr, made: tl.constexpr):
    tl.store(x_ptr, made(tl.program_id(0)))


def adding(amount):
    @triton.constexpr_function
    def add(x):
        return x + amount

    return add


@triton.jit
def by_an_item(x_ptr, made: tl.constexpr):
    tl.store(x_ptr, tl.program_id(0) + made[0](0))


class Shift(enum.Enum):
    LEFT = 1

    @property
    def shift(self):
        return CALLED.value


@triton.jit
def by_a_member(x_ptr, made: tl.constexpr):
    tl.store(x_ptr, tl.program_id(0) + made.shift)


@triton.constexpr_function
def of_the_list():
    return LISTED[0]["three"]


@triton.constexpr_function
def of_the_object():
    return OBJECT.shift


@triton.jit
def shift_by_a_setting(x):
    return x + settings.SHIFT


@triton.jit
def by_members(x_ptr):
    tl.store(x_ptr, shift_by_a_setting(tl.program_id(0)) * settings.SCALE)


@triton.jit
def compare_constant(x_ptr, value: tl.constexpr):
    if value == 3:
        tl.store(x_ptr, 1)
    elif value is None:
        tl.store(x_ptr, 2)
    elif value == True:  # noqa: E712  as Triton reads it
        tl.store(x_ptr, 4)
    else:
        tl.store(x_ptr, 5)


if hasattr(tl.core, "_aggregate") and hasattr(triton, "constexpr_function"):

    @tl.core._aggregate
    class Pair:
        first: tl.constexpr

        @triton.constexpr_function
        def __init__(self, first=CALLED):
            self.first = tl.constexpr(first)

    @triton.jit
    def by_an_aggregate(x_ptr):
        tl.store(x_ptr, tl.program_id(0) + Pair().first)
