"""Numbers for float parameters of every format: what is launched is the value rounded once, to nearest even."""

import math
import struct
from bisect import bisect_left
from fractions import Fraction
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.driver import StubDriver

import jitload
from jitload import Launch
from jitload.element_types import ELEMENT_TYPES

TYPES = {row.dtype: row for row in ELEMENT_TYPES.values() if row.kind == "float" and row.cpp}
FORMATS = {name: getattr(torch, name) for name in TYPES if hasattr(torch, name)}
SMALL = [name for name in FORMATS if name not in ("float32", "float64", "float8_e8m0fnu")]
SMALLEST = [name for name in SMALL if FORMATS[name].itemsize == 1]
MANY = 64
DOCS = Path(__file__).parents[1] / "docs"


def test_every_type_of_floats_is_tested_here():
    problem = "torch has no such type: test here that jitload_encode_float in runtime/core/arguments.h rounds it"
    assert TYPES.keys() - FORMATS.keys() == set(), problem


def test_every_header_of_a_type_has_a_form_for_the_cpu_and_is_in_the_manual():
    headers = {row.header for row in TYPES.values() if row.header}
    source = "".join(f"#include <{header}>\n" for header in headers) + "__global__ void k(float* x) {}"
    assert jitload.load_inline("headers", cuda_sources=source, arch="cpu").k
    for page in ("cpu_language.md", "libraries.md"):
        text = (DOCS / page).read_text()
        assert [header for header in headers if f"`{header}`" not in text] == [], f"name them in docs/{page}"


def test_the_manual_names_each_type_without_infinity():
    sentence = (DOCS / "launching.md").read_text().partition("range becomes infinite")[2].partition("largest finite")[0]
    types = [row.cpp for name, row in TYPES.items() if name.endswith("fn")]
    assert [cpp for cpp in types if f"`{cpp}`" not in sentence] == [], "name them in docs/launching.md"


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    headers = "".join(f"#include <{row.header}>\n" for row in TYPES.values() if row.header)
    kernels = [
        f'extern "C" __global__ void to_{name}({", ".join(f"{TYPES[name].cpp} v{i}" for i in range(MANY))}) {{}}'
        for name in FORMATS
    ]
    functions = {f"to_{name}": Launch(grid=1, block=1) for name in FORMATS}
    return jitload.load_inline("floats", cuda_sources=headers + "\n".join(kernels), functions=functions, arch="sm_90a")


def launched(driver: StubDriver, function: Any, values: list[float]) -> list[int]:
    """Return the bits that each value is launched as."""
    bits: list[int] = []
    for start in range(0, len(values), MANY):
        some = values[start : start + MANY]
        driver.clear()
        function(*some, *[0.0] * (MANY - len(some)))
        (launch,) = driver.launches()
        bits += [int.from_bytes(argument, "little") for argument in launch.arguments[: len(some)]]
    return bits


def torch_bits(values: list[float], name: str) -> list[int]:
    """Return torch's conversion of values that float32 holds exactly."""
    converted = torch.tensor(values, dtype=torch.float32).to(FORMATS[name])
    ints = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}
    return [int(bits) for bits in converted.view(ints[converted.element_size()])]


def is_nan(bits: int, name: str) -> bool:
    size = FORMATS[name].itemsize
    integer = torch.tensor([bits], dtype=torch.int64).view(torch.uint8)[:size]
    return bool(integer.view(FORMATS[name]).float().isnan())


def assert_same(bits: list[int], expected: list[int], values: list[float], name: str) -> None:
    for value, encoded, expected_bits in zip(values, bits, expected, strict=True):
        same = encoded == expected_bits or (
            is_nan(encoded, name) and is_nan(expected_bits, name)
        )  # the bits of a NaN are nobody's business
        assert same, f"{value!r} ({value.hex()}) as {name}: {encoded:#x}, not {expected_bits:#x}"


EDGES = [0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, 1e-45, 3.4028234663852886e38, 2.0**-126]


@st.composite
def near_a_tie(draw: st.DrawFn, name: str) -> float:
    """Draw a float32 that is half-way between two numbers of the format, or right beside it."""
    table = finite(name)
    index = draw(st.integers(0, len(table) - 1))
    above = table[index + 1] if index + 1 < len(table) else 2 * table[index] - table[index - 1]
    tie = torch.tensor(float((table[index] + above) / 2), dtype=torch.float32)
    towards = torch.tensor(draw(st.sampled_from([-math.inf, math.inf, float(tie)])))
    return draw(st.sampled_from([1, -1])) * float(torch.nextafter(tie, towards))


@pytest.mark.parametrize("name", SMALLEST)
def test_every_tie_of_the_8_bit_formats(mod, stub_driver, name):
    table = [float(value) for value in finite(name)]
    ties = [(low + high) / 2 for low, high in zip(table, [*table[1:], 2 * table[-1] - table[-2]], strict=True)]
    values = [sign * math.nextafter(tie, towards) for tie in ties for towards in (0, tie, math.inf) for sign in (1, -1)]
    exact = [float(torch.tensor(value)) for value in values]
    for some in (values, exact, table):
        expected = [round_exactly(value, name) for value in some]
        assert_same(launched(stub_driver, mod[f"to_{name}"], some), expected, some, name)
    assert_same(launched(stub_driver, mod[f"to_{name}"], exact), torch_bits(exact, name), exact, name)


@cache
def finite(name: str) -> tuple[Fraction, ...]:
    """Return all numbers of the format that are neither negative nor infinite, in the order of their bits."""
    dtype = FORMATS[name]
    codes = torch.arange(2 ** (8 * dtype.itemsize - 1), dtype=torch.int32)
    values = codes.to(torch.uint8 if dtype.itemsize == 1 else torch.uint16).view(dtype).double()
    return tuple(Fraction(float(value)) for value in values if value.isfinite())


def round_exactly(value: float, name: str) -> int:
    """Round with fractions: to nearest, ties to the even bits; above the last number lies one that does not exist."""
    table = finite(name)
    sign = int(math.copysign(1, value) < 0) << (8 * FORMATS[name].itemsize - 1)
    too_large = len(table) - name.endswith("fn")  # the infinity, or the largest number
    if math.isnan(value):
        return sign | (len(table) + (not name.endswith("fn")))
    if math.isinf(value):
        return sign | too_large
    size = Fraction(abs(value))
    above = bisect_left(table, size)
    if above < len(table) and table[above] == size:
        return sign | above
    low = table[above - 1]
    high = table[above] if above < len(table) else 2 * low - table[above - 2]
    is_low = size - low < high - size or (size - low == high - size and above % 2 == 1)
    return sign | min(above - is_low, too_large)


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_doubles_are_rounded_once(mod, stub_driver, name, data):
    ties = near_a_tie(name).map(lambda tie: [math.nextafter(tie, -math.inf), tie, math.nextafter(tie, math.inf)])
    lists = st.lists(st.floats(), max_size=MANY) | st.lists(ties, max_size=20).map(lambda some: list(chain(*some)))
    values = data.draw(lists) + EDGES
    expected = [round_exactly(value, name) for value in values]
    assert_same(launched(stub_driver, mod[f"to_{name}"], values), expected, values, name)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values=st.lists(st.floats() | st.integers(-(2**63), 2**63 - 1) | st.booleans(), min_size=1, max_size=MANY))
def test_float32_and_float64(mod, stub_driver, values):
    values = [*values, *EDGES, 1e300, -1e300, 3.4028235677973366e38, 3.4028235677973362e38]
    singles = torch.tensor([float(value) for value in values], dtype=torch.float64).to(torch.float32)
    floats = [float(value) for value in values]
    expected = [int(bits) for bits in singles.view(torch.uint32)]
    assert_same(launched(stub_driver, mod.to_float32, values), expected, floats, "float32")
    expected = [int.from_bytes(struct.pack("<d", value), "little") for value in floats]
    assert_same(launched(stub_driver, mod.to_float64, values), expected, floats, "float64")


@pytest.mark.parametrize("name", SMALL)
def test_integers_and_bools_become_small_floats(mod, stub_driver, name):
    values: list[float] = [0, 1, -1, True, False, 17, 449, 465, -65520, 65519, 2**24 + 1, 2**62, -(2**63)]
    expected = [round_exactly(float(value), name) for value in values]
    assert_same(launched(stub_driver, mod[f"to_{name}"], values), expected, [float(v) for v in values], name)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values=st.lists(st.floats(width=32, allow_subnormal=False), max_size=MANY), power=st.integers(-126, 127))
def test_powers_of_two(mod, stub_driver, values, power):
    values = [*values, 0.0, -0.0, 2.0**-127, 3.0 * 2.0**126, math.inf, -math.inf, math.nan]
    tie = torch.tensor(1.5 * 2.0**power)
    values += [float(torch.nextafter(tie, torch.tensor(to))) for to in (0.0, float(tie), math.inf)]
    expected = torch_bits(values, "float8_e8m0fnu")
    assert_same(launched(stub_driver, mod.to_float8_e8m0fnu, values), expected, values, "float8_e8m0fnu")
    values = [1e-300, 1.4 * 2.0**-127, 1.6 * 2.0**-127, 5e-324, 1e300, 1.5, math.nextafter(1.5, 0)]
    assert launched(stub_driver, mod.to_float8_e8m0fnu, values) == [0, 0, 1, 0, 255, 128, 127]
