"""What intrinsics must give, worked out with Python's own numbers."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch

M32, M64 = 2**32 - 1, 2**64 - 1


def signed(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def bits_row(x: Any, y: Any) -> list[int]:
    a, b = int(x), int(y)
    wide, s, t, by = a << 32 | b, signed(a), signed(b), b & 63
    both, first = b << 32 | a, [(a >> 8 * i) & 255 for i in range(4)]
    second = [(b >> 8 * i) & 255 for i in range(4)]
    permuted = sum((both >> 8 * p & 255) << 8 * i for i, p in enumerate((0, 4, 1, 5)))
    halves = [a & 0xFFFF, a >> 16]
    row = [
        a.bit_count(), wide.bit_count(), 32 - a.bit_length(), 64 - wide.bit_length(), (a & -a).bit_length(),
        (wide & -wide).bit_length(), int(f"{a:032b}"[::-1], 2), int(f"{wide:064b}"[::-1], 2) >> 7, permuted,
        (both << (by & 31)) >> 32, both >> (by & 31), (both << min(by, 32)) >> 32, both >> min(by, 32),
        s * t >> 32, a * b >> 32, wide * wide >> 64, signed(wide, 64) * a >> 64,
        signed(a, 24) * signed(b, 24), (a & 0xFFFFFF) * (b & 0xFFFFFF), abs(s - t) + 5, abs(a - b) + 5,
        (s + t) >> 1, (s + t + 1) >> 1, (a + b) >> 1, (a + b + 1) >> 1,
        7 + sum(signed(p, 8) * signed(q, 8) for p, q in zip(first, second, strict=True)),
        7 + sum(p * q for p, q in zip(first, second, strict=True)),
        7 + sum(signed(p, 16) * signed(q, 8) for p, q in zip(halves, second[:2], strict=True)),
        7 + sum(p * q for p, q in zip(halves, second[2:], strict=True)),
        min(a, b) ^ max(a, 5), min(wide, a) ^ max(wide, b),
        min(signed(wide, 64), a) ^ max(signed(wide, 64), b) >> 32, min(wide, wide + 1 & M64),
        max(s & M64, 7) >> 16, abs(signed(wide, 64)) ^ signed(abs(signed(wide, 64)), 64) >> 32,
        _swapped(a, 4) ^ _swapped(b & 0xFFFF, 2), _swapped(wide, 8) >> 8,
    ]  # fmt: skip
    return [value & M32 for value in row]


def _swapped(value: int, size: int) -> int:
    return int.from_bytes(value.to_bytes(size, "little"), "big")


def _lanes(bits: int, is_signed: bool, function: Callable[[int, int], int]) -> Callable[[int, int], int]:  # noqa: FBT001
    mask = (1 << bits) - 1

    def whole(a: int, b: int) -> int:
        result = 0
        for at in range(0, 32, bits):
            p, q = (a >> at) & mask, (b >> at) & mask
            p, q = (signed(p, bits), signed(q, bits)) if is_signed else (p, q)
            result |= (function(p, q) & mask) << at
        return result

    return whole


def _words_functions(n: int) -> list[Callable[[int, int], int]]:
    bits = 32 // n
    top, half = (1 << bits) - 1, 1 << (bits - 1)
    u = lambda f: _lanes(bits, False, f)  # noqa: E731
    s = lambda f: _lanes(bits, True, f)  # noqa: E731

    def total(is_signed: bool) -> Callable[[int, int], int]:  # noqa: FBT001
        one = _lanes(bits, is_signed, lambda p, q: abs(p - q))
        return lambda a, b: sum(one(a, b) >> at & top for at in range(0, 32, bits))

    return [
        u(lambda p, q: p + q), u(lambda p, q: p - q), s(lambda p, q: clamp(p + q, -half, half - 1)),
        u(lambda p, q: min(p + q, top)), s(lambda p, q: clamp(p - q, -half, half - 1)), u(lambda p, q: max(p - q, 0)),
        s(lambda p, q: (p + q + (p + q >= 0)) >> 1), u(lambda p, q: (p + q + 1) >> 1), u(lambda p, q: (p + q) >> 1),
        s(max), u(max), s(min), u(min), s(lambda p, q: abs(p - q)), u(lambda p, q: abs(p - q)),
        u(lambda p, q: -(p == q)), s(lambda p, q: -(p > q)), u(lambda p, q: -(p < q)), s(lambda p, q: int(p >= q)),
        u(lambda p, q: int(p != q)), total(True), total(False),
    ]  # fmt: skip


def words_row(x: Any, y: Any) -> list[int]:
    a, b = int(x), int(y)
    row = [f(a, b) for pair in zip(_words_functions(4), _words_functions(2), strict=True) for f in pair]
    row += [
        _lanes(8, True, lambda p, _: abs(p))(a, 0), _lanes(16, True, lambda p, _: min(abs(p), 32767))(a, 0),
        _lanes(8, True, lambda p, _: -p)(a, 0), _lanes(16, True, lambda p, _: min(-p, 32767))(a, 0),
    ]  # fmt: skip
    return [value & M32 for value in row]


def bfloats_of_integers(x: torch.Tensor, out: torch.Tensor) -> dict[int, Any]:
    """Return integers as bfloat16, which has eight significant bits, rounded to zero, up and down."""

    def rounded(value: int, mode: int) -> float:
        unit = 1 << max(abs(value).bit_length() - 8, 0)
        below, above = value // unit * unit, -(-value // unit) * unit
        return float((below if value >= 0 else above, above, below)[mode])

    row = [
        [rounded(kind, mode) for kind in (value, signed(value), value & 0xFFFF) for mode in range(3)]
        for value in x.tolist()
    ]
    return {1: torch.tensor(row, dtype=torch.float64)}


def _half_even(value: float) -> int:
    return round(Fraction(value))


MODES: tuple[Callable[[Any], int], ...] = (_half_even, math.trunc, math.ceil, math.floor)


def _to_integers(value: float, bits_of_value: int) -> list[int]:
    row = []
    for bits, is_signed in ((32, True), (32, False), (64, True), (64, False)):
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
        for mode in MODES:
            if math.isnan(value):
                found = 2 ** (bits - 1) if 64 in (bits, bits_of_value) else 0
                found = signed(found, bits) if is_signed else found
            elif math.isinf(value):
                found = high if value > 0 else low
            else:
                found = clamp(mode(value), low, high)
            row.append(signed(found, 64))
    return row


def _round_to(exact: Fraction, mode: int) -> np.float32:
    """Return the float32 at or beside an exact value, by rounding mode: nearest, to zero, up, down."""
    near = np.float32(float(exact))
    for candidate in (near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))):
        if Fraction(float(candidate)) == exact:
            return candidate
    below = near if Fraction(float(near)) < exact else np.nextafter(near, np.float32(-np.inf))
    above = np.nextafter(below, np.float32(np.inf))
    if mode == 0:
        under, over = exact - Fraction(float(below)), Fraction(float(above)) - exact
        even = int(below.view(np.uint32)) % 2 == 0
        return below if under < over or (under == over and even) else above
    return {1: below if exact > 0 else above, 2: above, 3: below}[mode]


def conversions_row(x: Any, y: Any) -> list[int]:
    row = _to_integers(float(x), 32) + _to_integers(float(y), 64)
    value = float(y)
    value = 0.0 if math.isnan(value) else value
    if math.isinf(value) or value == 0:
        narrow = [int(np.float32(value).view(np.int32))] * 4
    elif abs(value) > 3.5e38:
        narrow = [0x7F800000, 0x7F7FFFFF, 0x7F800000, 0x7F7FFFFF]
    else:
        narrow = [int(_round_to(Fraction(value), mode).view(np.int32)) for mode in range(4)]
    bits = int(np.float64(value).view(np.int64))
    return [*row, *narrow, bits >> 32, signed(bits), bits]


def rounding_row(x: Any, y: Any) -> list[int]:
    a, b = Fraction(float(x)), Fraction(float(y))
    bits_a, bits_b = int(np.float32(x).view(np.int32)), int(np.float32(y).view(np.uint32))
    exact: Sequence[Fraction] = (a + b, a - b, a * b, a / b, a * b + a, 1 / a)
    row = [_round_to(value, mode) for value in exact for mode in range(4)]
    root = [_root(abs(a), mode) for mode in range(4)]
    integers = [_round_to(Fraction(value), mode) for value in (bits_a, bits_b * 123456789) for mode in range(4)]
    product = np.float32(x) * np.float32(y)
    row += [*root, *integers, product + x, product - x, _round_to(a * b + a, 0)]
    row += [np.float32(min(max(float(x), 0.0), 1.0))]
    row += [_round_to(a * b + a, 0)]
    return [int(np.float32(value).view(np.int32)) for value in row]


def _root(value: Fraction, mode: int) -> np.float32:
    """Return the square root: an exact one of a float32 is rare, so the neighbours decide."""
    fine = Fraction(math.isqrt(value.numerator * value.denominator << 160), value.denominator << 80)
    return _round_to(fine, mode)


def _per_warp(x: torch.Tensor, function: Callable[[list[int]], list[list[int]]]) -> np.ndarray[Any, Any]:
    """Return the rows that a function makes of each warp's values, side by side."""
    values = x.tolist()
    return np.concatenate([np.array(function(values[at : at + 32])) for at in range(0, len(values), 32)], axis=1)


def shuffle_rows(x: torch.Tensor, out: torch.Tensor) -> dict[int, Any]:
    def warp(v: list[int]) -> list[list[int]]:
        lanes = range(32)
        pick = lambda source: [v[source(i)] for i in lanes]  # noqa: E731
        wide, real = pick(lambda i: i ^ 1), pick(lambda i: min(i + 1, 31))
        return [
            pick(lambda i: 5), pick(lambda i: i - 3 if i >= 3 else i), pick(lambda i: i + 7 if i + 7 < 32 else i),
            pick(lambda i: i ^ 9), pick(lambda i: i - 2 if i % 8 >= 2 else i),
            pick(lambda i: i + 2 if i % 8 < 6 else i),
            pick(lambda i: i ^ 12 if (i ^ 12) < i // 8 * 8 + 8 else i), pick(lambda i: i // 16 * 16 + 3),
            [p + q for p, q in zip(wide, real, strict=True)],
        ]  # fmt: skip

    return {1: _per_warp(x, warp).ravel()}


def _mask(flags: list[Any]) -> int:
    return sum(1 << i for i, flag in enumerate(flags) if flag)


def vote_rows(x: torch.Tensor, out: torch.Tensor) -> dict[int, Any]:
    def warp(v: list[int]) -> list[list[int]]:
        odd, anyone, everyone = _mask([one & 1 for one in v]), any(one > 90 for one in v), all(one >= 0 for one in v)
        same = [_mask([other % 5 == one % 5 for other in v]) for one in v]
        two, others = (sum(bool(one & 4) for one in v if bool(one & 2) == flag) for flag in (True, False))
        return [
            [odd] * 32, [anyone * 2 + everyone] * 32, same, [(M32 + 1) & M32] * 32,
            [two + 100 if one & 2 else others for one in v],
        ]  # fmt: skip

    return {1: _per_warp(x, warp).ravel()}


def scan_of_parity(x: torch.Tensor, out: torch.Tensor) -> dict[int, Any]:
    return {1: _per_warp(x, lambda v: [[_mask([o & 1 for o in v]) if one & 1 else 0 for one in v]]).ravel()}


def reduction_rows(x: torch.Tensor, out: torch.Tensor) -> dict[int, Any]:
    def warp(v: list[int]) -> list[list[int]]:
        low, array = [one - 50 for one in v], np.array(v)
        folds = [op.reduce(array) for op in (np.bitwise_and, np.bitwise_or, np.bitwise_xor)]
        made = [sum(low), min(low), max(low), *folds, max(one & M32 for one in low)]
        return [[int(value) & M32] * 32 for value in made]

    return {1: _per_warp(x, warp).ravel()}
