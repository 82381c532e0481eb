"""The records of a library of Triton kernels: what is to be built, and what decides it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jitload.model import Cubin


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSource:
    """One specialisation: its exported name, and its plan, or its cubins where it is compiled already."""

    name: str
    plan: Any = None
    cubins: tuple[Cubin, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonSource:
    """A Triton kernel in a request; two are the same if their parts are.

    Attributes:
        parts: Everything that decides what the library will be.
        name: The kernel's name.
        kernel: The kernel as it was given; None where it is compiled already.
        variants: Its specialisations, in the order in which a call tries them.
        grid: The grid as it was given: launch expressions, or a function of Triton's form.
        examples: Integers among the example arguments.
        triton: The release that compiles it.
    """

    parts: tuple[tuple[str, str | tuple[str, ...]], ...]
    name: str
    kernel: Any = field(compare=False, default=None)
    variants: tuple[VariantSource, ...] = field(compare=False)
    grid: Any = field(compare=False, default=None)
    examples: tuple[tuple[str, int], ...] = field(compare=False, default=())
    triton: Any = field(compare=False, default=None)
