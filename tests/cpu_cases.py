"""The table of kernels that run on both targets: what each is given, and what it must make of it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cpu_group_references as groups
import numpy as np
import torch
from cpu_references import (
    bfloats_of_integers,
    bits_row,
    conversions_row,
    reduction_rows,
    rounding_row,
    scan_of_parity,
    shuffle_rows,
    vote_rows,
    words_row,
)

SOURCES = Path(__file__).parent / "cpu_kernels"
RNG = np.random.default_rng(7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kernel of the table.

    Attributes:
        file: The source that holds it, without its suffix.
        launch: Grid, block, and bytes of dynamic shared memory.
        arguments: Tensors and numbers; what the kernel writes is among them.
        expected: What the tensors at these positions must hold afterwards.
        rtol: How far from that they may be; 0 is exactly.
        gpu_rtol: How far the GPU may be from the CPU: sums in another order, functions of another library.
    """

    file: str
    launch: tuple[Any, ...]
    arguments: tuple[Any, ...]
    expected: Callable[..., dict[int, Any]]
    rtol: float = 0
    gpu_rtol: float = 0

    def fresh(self, device: str = "cpu") -> list[Any]:
        """Return the arguments, copied to a device."""
        return [a.clone().to(device) if isinstance(a, torch.Tensor) else a for a in self.arguments]


def ints(*shape: int, low: int = 0, high: int = 100) -> torch.Tensor:
    return torch.from_numpy(RNG.integers(low, high, shape, dtype=np.int32))


def floats(*shape: int, scale: float = 1) -> torch.Tensor:
    return torch.from_numpy(RNG.standard_normal(shape, dtype=np.float32) * np.float32(scale))


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


I32, I64, U32 = torch.int32, torch.int64, torch.uint32
WORDS = torch.from_numpy(RNG.integers(0, 2**32, 64, dtype=np.uint32))
OTHERS = torch.from_numpy(RNG.integers(0, 2**32, 64, dtype=np.uint32))
WORDS[:4] = torch.tensor([0, 0xFFFFFFFF, 0x80000000, 0x7F80FF01], dtype=U32)
OTHERS[:4] = torch.tensor([0, 0xFFFFFFFF, 0x80000000, 0x80017F7F], dtype=U32)
INTEGERS = torch.from_numpy(RNG.integers(-(2**63), 2**63, 64) >> np.arange(64))
ODD_FLOATS = torch.tensor(
    [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1e-40, 3e9, -3e9, 1e20, -1e20, float("inf"), float("-inf"), float("nan"),
     2147483520.0, 4294967040.0, 0.1, 1 / 3, 9.2e18, 1.9e19]
)  # fmt: skip
ODD_DOUBLES = torch.tensor([*ODD_FLOATS.tolist()[:17], 2147483647.5, -2147483648.5, 1e-310, 1e300], dtype=torch.float64)
NEAR = floats(200, scale=3)
HALVES, HALVES_2 = floats(300, scale=4).half(), floats(300, scale=4).half()
BFLOATS, BFLOATS_2 = floats(300, scale=4).bfloat16(), floats(300, scale=4).bfloat16()


def rows(function: Callable[..., list[int]], width: int, dtype: Any) -> Callable[..., dict[int, Any]]:
    """Return the expectation of a kernel that fills a row for each element."""

    def expected(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, n: int) -> dict[int, Any]:
        table = np.zeros((n, width), dtype)
        for i, (a, b) in enumerate(zip(x.numpy(), y.numpy(), strict=True)):
            made = function(a, b)
            table[i, : len(made)] = np.array(made, dtype=object).astype(dtype)
        return {2: table.ravel()}

    return expected


def by_torch(at: int, function: Callable[..., torch.Tensor]) -> Callable[..., dict[int, Any]]:
    return lambda *arguments: {at: function(*arguments).reshape(-1)}


def _several_shared(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    t = torch.arange(64)
    return x.flip(0) + 2 * x.flip(0) + (63 - t) + x.max() + x.argmax()


def _integer_atomics(x: torch.Tensor, i: torch.Tensor, u: torch.Tensor, w: torch.Tensor, n: int) -> dict[int, Any]:
    v = x[:n].numpy().astype(np.int64)
    fold = lambda op, values: int(op.reduce(values))  # noqa: E731
    down, up = int(u[2]), int(u[1])
    for _ in range(n):
        up = 0 if up >= 10 else up + 1
        down = 10 if down == 0 or down > 10 else down - 1
    seen = [int(value) for value in i]
    signed = [seen[0] + v.sum(), seen[1] - v.sum(), min(seen[2], v.min()), max(seen[3], v.max()),
              seen[4] & fold(np.bitwise_and, v | 0xFF00), seen[5] | fold(np.bitwise_or, v),
              seen[6] ^ fold(np.bitwise_xor, v), seen[7] + n, seen[8] + n]  # fmt: skip
    plain = [int(u[0]) + v.sum(), up, down, max(int(u[3]), v.max()), min(int(u[4]), v.min())]
    wide = [n << 33, v.max() << 40, fold(np.bitwise_or, 1 << (v % 64)), fold(np.bitwise_xor, v << 20),
            min(int(w[4]), v.min() << 33)]  # fmt: skip
    return {1: np.array(signed), 2: np.array(plain), 3: np.array([int(value) & 2**64 - 1 for value in wide], np.uint64)}


def _language(x: torch.Tensor, out: torch.Tensor, n: int, settings: bytes) -> dict[int, Any]:
    i, parity, fibonacci = np.arange(n), np.arange(n) % 2, [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89]
    x64 = x.numpy().astype(np.float64)
    table = np.stack([
        sum((x64 + k) ** 2 for k in range(4)), np.array(fibonacci)[i % 12] + 1.0,
        np.where(parity == 0, x64**2, 3 * x64**2), np.where(parity == 0, 2 * x64, x64**2), 10 * x64,
        x64 * 1.5 + 8 + 65 + 0.25, np.clip(x64, 0, 1) + 1 + i, 6 * x64 + 1, 3 * x64 + 1, 2 * x64 + 12 + 16,
    ], axis=1)  # fmt: skip
    return {1: table.ravel()}


def _functions(x: torch.Tensor, out: torch.Tensor, n: int) -> dict[int, Any]:
    a, s = x.double(), torch.special
    third = torch.sign(a) * a.abs() ** (1 / 3)
    table = [
        a.exp(), a.exp2(), 10**a, a.expm1(), a.log(), a.log2(), a.log10(), a.log1p(), a.sin(), a.cos(), a.tan(),
        a.tanh(), a.sinh(), a.cosh(), a.asinh(), a.atan(), torch.atan2(a, torch.tensor(2.0).double()), a**1.5, a.sqrt(),
        a.rsqrt(), third, 1 / third, (a**2 + 9).sqrt(), (a**2 + 9).rsqrt(), (a**2 + 5).sqrt(), (a**2 + 14).rsqrt(),
        (a * torch.pi).sin(), (a * torch.pi).cos(), a.erf(), a.erfc(), (a / 8).erfinv(),
        -s.ndtri((a / 4).double() / 2) / 2**0.5, s.erfcx(a), s.ndtr(a), s.ndtri(a / 8), a.lgamma().exp(), a.lgamma(),
        s.i0(a), s.i1(a), s.bessel_j0(a), torch.fmod(a, torch.tensor(0.7).double()), sum(torch.frexp(a)), a * 8, a,
        (a * torch.pi).sin(), (a * torch.pi).cos(),
    ]  # fmt: skip
    full = torch.zeros(n, 48, dtype=torch.float64)
    full[:, : len(table)] = torch.stack(table, 1)
    return {1: full.reshape(-1)}


def _extremes(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, n: int) -> dict[int, Any]:
    a, b = x.numpy(), y.numpy()
    with np.errstate(invalid="ignore"):
        less, more = np.fmin(a, b), np.fmax(a, b)
        # NaN unless a number exceeds the other, as C has it.
        dim = np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), np.where(a > b, a - b, np.float32(0)))
        away = np.copysign(np.floor(np.abs(a) + np.float32(0.5)), a)
        away = np.where(np.abs(a) < 2**23, away, a)
        flags = np.isnan(a) + 2 * np.isinf(a) + 4 * np.signbit(b) + 8 * np.isfinite(b)
        table = np.stack([less, more, less, more, dim, np.copysign(a, b), away + np.rint(b), flags], 1)
    return {2: table.astype(np.float32).ravel()}


def _half(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, n: int) -> dict[int, Any]:
    a, b = x.double(), y.double()
    fma = (a * b + a).half()
    table = [
        (a + b), a * b, a - b, a / b, fma, (a * b + b).clamp(min=0), fma.double().clamp(0, 1), torch.maximum(a, b),
        torch.minimum(a, b), a.floor(), b.ceil(), a.round(), b.trunc(), -a.abs(), a, a.floor() + b.ceil(),
    ]  # fmt: skip
    return {2: torch.stack([value.half() for value in table], 1).reshape(-1)}


def _half_functions(x: torch.Tensor, out: torch.Tensor, n: int) -> dict[int, Any]:
    a = x.double()
    table = [a.exp(), a.log(), a.sqrt(), a.rsqrt(), 1 / a, a.sin(), a.cos(), a.exp2(), a.log2(), 10**a]
    return {1: torch.stack(table, 1).half().reshape(-1)}


def _half_pairs(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, n: int) -> dict[int, Any]:
    a, b = x.double().view(-1, 2), y.double().view(-1, 2)
    table = [a * b + a, a + b, a.round(), torch.maximum(a, b), a.abs().sqrt()]
    return {2: torch.stack(table, 1).half().reshape(-1)}


def _bfloat(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, n: int) -> dict[int, Any]:
    a, b = x.double(), y.double()
    third = (x.float() / 3).double()
    table = [a + b, a * b, a * b + a, torch.maximum(a, b), a.floor(), third]
    return {2: torch.stack(table, 1).bfloat16().reshape(-1)}


def _fp8(x: torch.Tensor, out: torch.Tensor, n: int) -> dict[int, Any]:
    kinds = (torch.float8_e4m3fn, torch.float8_e5m2)
    return {1: torch.stack([x.to(kind).float() for kind in kinds], 1).reshape(-1)}


def _taps(x: torch.Tensor, out: torch.Tensor, n: int) -> torch.Tensor:
    kernel = torch.tensor([[[1.0, 4, 6, 4, 1]]]).double()
    return torch.conv1d(x.double()[None, None], kernel, padding=2)[0, 0] / 16 + 7


def _indices(out: torch.Tensor) -> torch.Tensor:
    block, z, y, x = torch.meshgrid(*(torch.arange(n) for n in (12, 2, 3, 5)), indexing="ij")
    return (block * 100000 + z * 10000 + y * 100 + x + 32).int()


S = float(2**-8)
CASES: dict[str, Case] = {
    "indices": Case(file="blocks", launch=((2, 3, 2), (5, 3, 2)), arguments=(zeros(360, dtype=I32),),
        expected=by_torch(0, _indices)),
    "block_sum": Case(file="blocks", launch=(8, 256), arguments=(floats(2000), zeros(8), 2000), rtol=1e-5, gpu_rtol=0,
        expected=by_torch(1, lambda x, *_: torch.nn.functional.pad(x.double(), (0, 48)).view(8, 256).sum(1))),
    "block_scan": Case(file="blocks", launch=(4, 128, 512), arguments=(ints(512), zeros(512, dtype=I32)),
        expected=by_torch(1, lambda x, _: x.view(4, 128).cumsum(1).int())),
    "transpose": Case(file="blocks", launch=((3, 5), (16, 16)), arguments=(floats(70, 40), zeros(40, 70), 70, 40),
        expected=by_torch(1, lambda x, *_: x.T)),
    "several_shared": Case(file="blocks", launch=(1, 64, 512), arguments=(floats(64), zeros(64)), rtol=1e-6,
        expected=by_torch(1, _several_shared)),
    "counting_barriers": Case(file="blocks", launch=(1, 96), arguments=(ints(96), zeros(96, dtype=I32)),
        expected=by_torch(1, lambda x, _: torch.full((96,), int((x & 1).sum()) * 4 + 1, dtype=I32))),
    "early_return": Case(file="blocks", launch=(1, 128), arguments=(floats(128), zeros(128), 77),
        expected=by_torch(1, lambda x, *_: torch.cat([x[:77].flip(0), torch.zeros(51)]))),
    "constants": Case(file="blocks", launch=(4, 64), arguments=(floats(200), zeros(200), 200), rtol=1e-5, gpu_rtol=1e-6,
        expected=by_torch(1, _taps)),
    "shuffles": Case(file="warps", launch=(1, 64),
        arguments=(ints(64), zeros(9 * 64, dtype=I32)), expected=shuffle_rows),
    "votes": Case(file="warps", launch=(1, 64), arguments=(ints(64), zeros(5 * 64, dtype=U32)), expected=vote_rows),
    "active": Case(file="warps", launch=(1, 64), arguments=(ints(64), zeros(64, dtype=U32)), expected=scan_of_parity),
    "reductions": Case(file="warps", launch=(1, 64), arguments=(ints(64), zeros(7 * 64, dtype=U32)),
        expected=reduction_rows),
    "group_shapes": Case(file="groups", launch=((2, 3), (16, 8)), arguments=(zeros(27 * 768, dtype=I32),),
        expected=groups.shapes),
    "group_exchanges": Case(file="groups", launch=(1, 64), arguments=(ints(64), zeros(26 * 64, dtype=I32)),
        expected=groups.exchanges),
    "group_partitions": Case(file="groups", launch=(1, 64), arguments=(ints(64), zeros(15 * 64, dtype=I32)),
        expected=groups.partitions),
    "group_sums": Case(file="groups", launch=(1, 128), arguments=(ints(128), zeros(39 * 128, dtype=I32)),
        expected=groups.sums),
    "group_copies": Case(file="groups", launch=(1, 128), arguments=(ints(128), zeros(3 * 128, dtype=I32)),
        expected=groups.copies),
    "integer_atomics": Case(file="atomics", launch=(4, 64), expected=_integer_atomics, arguments=(
        ints(256, low=1), torch.tensor([5, 6, 50, 50, 0xFFFF, 0, 3, 0, 0], dtype=I32),
        torch.tensor([0, 4, 4, 50, 50], dtype=U32), torch.tensor([0, 0, 0, 0, 2**62], dtype=torch.uint64), 250)),
    "float_atomics": Case(file="atomics", launch=(4, 64), rtol=1e-5, gpu_rtol=1e-5,
        arguments=(floats(256).abs(), zeros(2), zeros(1, dtype=torch.float64), 250),
        expected=lambda x, *_: {1: torch.stack([x[:250].double().sum(), x[:250].max().double()]),
                                2: x[:250].double().sum()[None]}),
    "last_block": Case(file="atomics", launch=(6, 32), rtol=1e-4, arguments=(
        floats(6 * 32 * 64).abs(), zeros(192), zeros(1), zeros(1, dtype=U32)),
        expected=lambda x, *_: {2: x.double().sum()[None], 3: np.array([0])}),
    "bits": Case(file="numbers", launch=(1, 64), arguments=(WORDS, OTHERS, zeros(64 * 40, dtype=U32), 64),
        expected=rows(bits_row, 40, np.uint32)),
    "words": Case(file="numbers", launch=(1, 64), arguments=(WORDS, OTHERS, zeros(64 * 64, dtype=U32), 64),
        expected=rows(words_row, 64, np.uint32)),
    "conversions": Case(file="numbers", launch=(1, 32),
        arguments=(ODD_FLOATS, ODD_DOUBLES, zeros(21 * 48, dtype=I64), 21),
        expected=rows(conversions_row, 48, np.int64)),
    "rounding": Case(file="numbers", launch=(4, 64),
        arguments=(NEAR, NEAR.flip(0) * 1.1, zeros(200 * 44, dtype=I32), 200),
        expected=rows(rounding_row, 44, np.int32)),
    "functions": Case(file="numbers", launch=(4, 64), rtol=2e-6, gpu_rtol=1e-5, expected=_functions,
        arguments=(NEAR.abs().clamp(0.01, 7.0), zeros(200 * 48), 200)),
    "extremes": Case(file="numbers", launch=(1, 32), arguments=(ODD_FLOATS, ODD_FLOATS.roll(3), zeros(21 * 8), 21),
        expected=_extremes),
    "half_arithmetic": Case(file="narrow", launch=(5, 64), expected=_half,
        arguments=(HALVES, HALVES_2, zeros(300 * 16, dtype=torch.half), 300)),
    "half_functions": Case(file="narrow", launch=(5, 64), expected=_half_functions, rtol=2 * S / 4, gpu_rtol=2 * S / 4,
        arguments=(HALVES.abs().clamp(0.1, 4), zeros(300 * 10, dtype=torch.half), 300)),
    "half_pairs": Case(file="narrow", launch=(5, 64), expected=_half_pairs,
        arguments=(HALVES, HALVES_2, zeros(150 * 10, dtype=torch.half), 150)),
    "half_warp": Case(file="narrow", launch=(1, 32), arguments=(ints(32).half(), zeros(32, dtype=torch.half), zeros(1)),
        expected=lambda x, *_: {1: x.sum().repeat(32), 2: x.sum().float()[None]}),
    "bfloat_arithmetic": Case(file="narrow", launch=(5, 64), expected=_bfloat,
        arguments=(BFLOATS, BFLOATS_2, zeros(300 * 6, dtype=torch.bfloat16), 300)),
    "bfloat_integers": Case(file="narrow", launch=(1, 64), expected=bfloats_of_integers,
        arguments=(INTEGERS, zeros(64 * 9, dtype=torch.bfloat16))),
    "fp8_round_trip": Case(file="narrow", launch=(4, 64), expected=_fp8,
        arguments=(floats(200, scale=20), zeros(400), 200)),
    "language": Case(file="language", launch=(2, 64), rtol=1e-5, gpu_rtol=1e-6, expected=_language, arguments=(
        floats(100), zeros(1000), 100, np.array([(1.5, 3, 65, 0.25)], dtype=np.dtype(
            "f4, i4, i1, f8", align=True)).tobytes())),
    "axpy": Case(file="language", launch=(2, 64), arguments=(0.5, floats(100).double(), floats(100).double(), 100),
        rtol=1e-15, gpu_rtol=1e-15, expected=lambda a, x, y, n: {2: a * x + y}),
    "references": Case(file="language", launch=(1, 8), arguments=(
        torch.tensor([0.5]), ints(8), zeros(8), torch.full((4,), 7.0)),
        expected=lambda scale, x, _, last: {2: x * scale, 3: torch.tensor([7, 7, 7, x[3].item()])}),
    "vectors": Case(file="language", launch=(1, 64), arguments=(floats(50, 4), zeros(50, 4), 50),
        expected=by_torch(1, lambda x, *_: x.flip(1))),
}  # fmt: skip
