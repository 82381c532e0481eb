"""What tests of calls share: arrays of one kind, a library with no history, and the exact text of a refusal."""

import itertools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builds import output_of

import jitload

from .arrays import DTYPES, CudaArray

_numbers = itertools.count()


def array(dtype: str = "float32", size: int = 8, device: int = 0, **claims: Any) -> CudaArray:
    """Return an array of `size` elements that claims a dtype and a CUDA device; see `CudaArray` for the claims."""
    item_size = (DTYPES[dtype][1] + 7) // 8
    return CudaArray(np.zeros((size, item_size), np.uint8), device, dtype=dtype, **{"shape": (size,), **claims})


def fresh(path: str | Path) -> jitload.Module:
    """Load a copy of a library: one that has launched nothing in this process."""
    copy = Path(path).with_name(f"fresh{next(_numbers)}.so")
    shutil.copyfile(path, copy)
    return jitload.load_module(copy)


def assert_refused(kind: type[Exception], message: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Check that a call raises exactly this class with exactly this text."""
    with pytest.raises(kind) as caught:
        function(*arguments)
    assert type(caught.value) is kind
    assert str(caught.value) == message, f"{caught.value}\nis not\n{message}"


def run_python(text: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a program in a process of its own, without torch, which takes long to import; return what it prints."""
    return output_of(f"import sys, jitload\n{text}", *arguments, environment=environment)
