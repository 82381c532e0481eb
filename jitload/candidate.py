"""The record of what a source says about a kernel, apart from `model`, because NVRTC waits for it and not for those."""

from __future__ import annotations

from typing import NamedTuple


class Candidate(NamedTuple):
    """A function in the source that looks like a kernel; only the compiler can tell whether it is one.

    Attributes:
        name: The name with its namespaces, `ns::scale`.
        is_template: Whether the function is a template, which has to be instantiated.
        parameters: The names of its parameters; "" for an unnamed parameter.
        types: The text of each parameter's type, with single spaces.
        piece: The index of the text in `cuda_sources` that contains the function.
        line: The function's line in that text, counted from 1.
        is_definition: Whether it has a body.
    """

    name: str
    is_template: bool
    parameters: tuple[str, ...]
    types: tuple[str, ...]
    piece: int
    line: int
    is_definition: bool
