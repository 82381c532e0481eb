"""What the kernels of cpu_kernels/groups.cu must write: one number in each row for each thread."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch


def rows_of_threads(count: int, thread: Callable[[int], list[int]]) -> np.ndarray[Any, Any]:
    """Return the numbers of all threads row by row; a thread that ends early leaves zeros."""
    threads = [thread(number) for number in range(count)]
    height = max(map(len, threads))
    return np.array([[*numbers, *[0] * (height - len(numbers))] for numbers in threads]).T.astype(np.int32)


def shape(meta_rank: int, meta_size: int, rank: int, size: int) -> int:
    return ((meta_rank * 200 + meta_size) * 200 + rank) * 200 + size


def shapes(out: torch.Tensor) -> dict[int, Any]:
    def tile(rank: int, size: int, parent: int) -> int:
        return shape(rank % parent // size, parent // size, rank % size, size)

    def thread(number: int) -> list[int]:
        block, t = divmod(number, 128)
        (by, bx), (y, x) = divmod(block, 2), divmod(t, 16)
        group = [t * 10000 + 128, t % 32 * 10000 + 32, t % 4 * 10000 + 4, t % 16 * 10000 + 16]
        of_16, of_32, of_block = tile(t, 4, 16), tile(t, 4, 32), tile(t, 4, 128)
        warp = tile(t, 32, 128)
        return [
            t * 1000 + 256, bx * 100 + by * 10, x * 10000 + y * 100, 16 * 100 + 8 * 10 + 1 + 16,
            number * 10000 + 2 * 768, block * 100 + 6, bx * 100 + by * 10, (bx * 16 + x) * 10000 + (by * 8 + y) * 100,
            32 * 10000 + 24 * 100 + 1, 200 + 30 + 1 + 2,
            warp, warp, tile(t, 16, 32), of_16, of_32, of_block, of_block, of_16,
            shape(0, 1, 0, 1), warp, 16000 + t % 16, 32000 + t % 32,
            *group, 128 * 1000 + 16 + t % 4,
        ]  # fmt: skip

    return {0: rows_of_threads(768, thread)}


class Members:
    """The threads of a group that a thread belongs to."""

    def __init__(self, threads: Sequence[int], thread: int) -> None:
        self.threads = threads
        self.rank = threads.index(thread)

    def source(self, rank: int) -> int:
        """Return the thread with this rank, or the thread itself if there is none."""
        return self.threads[rank if 0 <= rank < len(self.threads) else self.rank]


def tile_of(thread: int, size: int) -> Members:
    return Members(range(thread // size * size, thread // size * size + size), thread)


def part_of(group: Members, label: Callable[[int], Any]) -> Members:
    """Return the members with the same label as the thread."""
    own = group.threads[group.rank]
    return Members([lane for lane in group.threads if label(lane) == label(own)], own)


def odd_lanes(x: Sequence[int], thread: int) -> Members:
    return part_of(tile_of(thread, 32), lambda lane: x[lane] & 1)


def votes(x: Sequence[int], group: Members) -> list[int]:
    values = [x[thread] for thread in group.threads]
    own, everyone = values[group.rank], (1 << len(values)) - 1
    same = len(set(values)) == 1

    def ballot(flags: Iterator[bool]) -> int:
        return sum(1 << rank for rank, flag in enumerate(flags) if flag)

    return [
        any(v > 90 for v in values) * 2 + all(v < 90 for v in values), ballot(bool(v & 2) for v in values),
        ballot(v % 3 == own % 3 for v in values), everyone, (everyone if same else 0) + 1,
    ]  # fmt: skip


def exchanges(x: torch.Tensor, out: torch.Tensor) -> dict[int, Any]:
    v = x.tolist()

    def thread(t: int) -> list[int]:
        eight, warp, odd = tile_of(t, 8), tile_of(t, 32), odd_lanes(v, t)
        third, rank = v[eight.threads[2]], odd.rank
        numbers = [
            v[eight.threads[3]], v[eight.source(eight.rank - 3)], v[eight.source(eight.rank + 3)],
            v[eight.threads[eight.rank ^ 5]], v[warp.source(warp.rank + 1)] + v[warp.threads[7]],
            third * 10000 + (third + 1) * 100 + third + 2, v[warp.source(warp.rank - 1)],
            *votes(v, eight), *votes(v, warp),
        ]  # fmt: skip
        if v[t] & 1:
            size = len(odd.threads)
            numbers += [
                shape(0, 1, rank, size), rank * 10000 + size, v[odd.threads[1]],
                v[odd.source(rank - 2)] * 100 + v[odd.source(rank + 2)], *votes(v, odd),
            ]  # fmt: skip
        return numbers

    return {1: rows_of_threads(64, thread)}


def partitions(x: torch.Tensor, out: torch.Tensor) -> dict[int, Any]:
    v = x.tolist()

    def labeled(group: Members, label: Callable[[int], int]) -> int:
        part = part_of(group, label)
        labels = list(dict.fromkeys(map(label, group.threads)))  # in the order of their first threads
        return shape(labels.index(label(group.threads[group.rank])), len(labels), part.rank, len(part.threads))

    def binary(group: Members, flag: Callable[[int], bool]) -> int:
        part, own = part_of(group, flag), flag(group.threads[group.rank])
        if len(part.threads) == len(group.threads):
            return shape(0, 1, part.rank, len(part.threads))
        return shape(own, 2, part.rank, len(part.threads))

    def thread(t: int) -> list[int]:
        warp, odd = tile_of(t, 32), odd_lanes(v, t)
        by_three, by_bit = labeled(warp, lambda i: v[i] % 3), binary(warp, lambda i: bool(v[i] & 1))
        numbers = [by_three] * 3 + [by_bit] * 2 + [shape(0, 1, t % 8, 8)]
        numbers += [t % size * 10000 + size for size in (4, 2, 8)]
        if v[t] & 1:
            fours = part_of(odd, lambda i: odd.threads.index(i) // 4)
            size = len(odd.threads)
            numbers += [
                shape(odd.rank // 4, -(-size // 4), fours.rank, len(fours.threads)),
                fours.rank * 10000 + len(fours.threads), shape(0, 1, odd.rank, size), v[fours.threads[0]],
                binary(odd, lambda i: bool(v[i] & 2)), labeled(odd, lambda i: v[i] % 5),
            ]  # fmt: skip
        return numbers

    return {1: rows_of_threads(64, thread)}


def group_sums(x: Sequence[int], group: Members) -> list[int]:
    values = [x[thread] for thread in group.threads]
    before, until = values[: group.rank], values[: group.rank + 1]
    fold = functools.reduce
    return [
        sum(values), min(values), max(values), fold(int.__and__, values), fold(int.__or__, values),
        fold(int.__xor__, values), sum(values), max(values), sum(until), max(until), sum(before), sum(before),
        fold(int.__xor__, before, 0),
    ]  # fmt: skip


def sums(x: torch.Tensor, out: torch.Tensor) -> dict[int, Any]:
    v = x.tolist()

    def thread(t: int) -> list[int]:
        numbers = [*group_sums(v, tile_of(t, 8)), *group_sums(v, tile_of(t, 32))]
        return numbers + (group_sums(v, odd_lanes(v, t)) if v[t] & 1 else [])

    return {1: rows_of_threads(128, thread)}


def copies(x: torch.Tensor, out: torch.Tensor) -> dict[int, Any]:
    v = x.tolist()

    def thread(t: int) -> list[int]:
        start = t // 8 * 8
        copied = v[120 - start : 128 - start]
        return [v[127 - t], copied[7 - t % 8], v[(127 - t) // 4 * 4 + 2] * 1000]

    return {1: rows_of_threads(128, thread)}
