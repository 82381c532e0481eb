"""The texts of `torch_programs/`: C++ and CUDA in the styles that people and models write for torch's `load_inline`.

A file holds several texts. Each begins with `//// name`, followed by lines of these forms and by the text itself:

    /// functions: f, g              the value of `functions=`, unless the text has a PYBIND11_MODULE
    /// cpp: torch::Tensor f(…);     `cpp_sources` of a text with kernels
    /// cuda_flags: -O3              `extra_cuda_cflags`
    /// torch: refused               torch does not build the text
    /// call: f(rand(3)) -> rand(3)  a call, and what it returns
    /// call: f(None) !! TypeError: text   a call that fails before it needs a GPU, the class and the start of the message;
                                     after `!gpu` and `!cpu` only with tensors on that device
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

_FOLDER = Path(__file__).parent / "torch_programs"
_CALL = re.compile(r"(?P<call>.*?)(?:\s+->\s+(?P<result>.*)|\s+(?P<on>!!|!gpu|!cpu)(?:\s+(?P<error>.*))?)?$")


class Call(NamedTuple):
    """A call of a text's function, as Python, with the result or the error that is expected.

    Attributes:
        expression: The call.
        result: An expression for what it returns, or nothing.
        error: The class and the start of the message of its error, or None if it succeeds.
        on: The devices on which it fails.
    """

    expression: str
    result: str
    error: str | None
    on: tuple[str, ...]


class Program(NamedTuple):
    """A text with its calls."""

    name: str
    file: str
    cuda: str | None
    cpp: str
    functions: tuple[str, ...]
    cuda_flags: tuple[str, ...]
    is_refused_by_torch: bool
    calls: tuple[Call, ...]

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `load_inline`, as people pass them."""
        return {
            "name": self.name,
            "cpp_sources": self.cpp,
            "cuda_sources": self.cuda,
            "functions": list(self.functions) or None,
            "extra_cuda_cflags": list(self.cuda_flags) or None,
            "extra_cflags": [""],
            "extra_ldflags": [""],
        }


def _programs() -> Iterator[Program]:
    for path in sorted(_FOLDER.iterdir()):
        for section in path.read_text(encoding="utf-8").split("//// ")[1:]:
            name, _, rest = section.partition("\n")
            options = re.findall(r"^/// (\w+): (.*)$", rest, re.MULTILINE)
            text = "".join(line for line in rest.splitlines(keepends=True) if not line.startswith("/// "))
            values = dict(options)
            yield Program(
                name=name,
                file=path.stem,
                cuda=text if path.suffix == ".cu" else None,
                cpp=values.get("cpp", "") if path.suffix == ".cu" else text,
                functions=tuple(values["functions"].split(", ")) if "functions" in values else (),
                cuda_flags=tuple(values.get("cuda_flags", "").split()),
                is_refused_by_torch="torch" in values,
                calls=tuple(_call(value) for key, value in options if key == "call"),
            )


def _call(line: str) -> Call:
    match = _CALL.fullmatch(line.strip())
    assert match is not None
    on = {"!!": ("cpu", "cuda"), "!gpu": ("cuda",), "!cpu": ("cpu",), None: ()}[match["on"]]
    return Call(match["call"], match["result"] or "", (match["error"] or "") if on else None, on)


PROGRAMS = tuple(_programs())


def names(device: str) -> dict[str, Any]:
    """Return the names that calls use, with tensors on a device."""

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(device)

    def ints(*shape: int) -> torch.Tensor:
        return torch.randint(0, 10, shape, generator=torch.Generator().manual_seed(sum(shape))).to(device)

    return {"torch": torch, "np": np, "rand": rand, "ints": ints, "DEVICE": device}


def functions_of(module: Any) -> dict[str, Any]:
    """Return the functions of a module by their names."""
    return {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}


def difference(value: Any, expected: Any) -> str:
    """Return how a value differs from the expected one, numbers by more than rounding, or nothing."""
    if type(value) is not type(expected):
        return f"{type(value).__name__} instead of {type(expected).__name__}"
    if isinstance(value, list | tuple):
        if len(value) != len(expected):
            return f"{len(value)} items instead of {len(expected)}"
        return "; ".join(filter(None, map(difference, value, expected)))
    if isinstance(value, torch.Tensor | float):
        try:
            torch.testing.assert_close(value, expected, check_stride=True, equal_nan=True)
        except AssertionError as error:
            return str(error)
        return ""
    return "" if value == expected else f"{value!r} instead of {expected!r}"
