"""The CUBIN launcher guide's NVRTC example, afresh, in both spellings; and the originals, where they are given."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from guides.affine import SPELLINGS, load_affine
from support.arrays import CudaArray, tensor_of

if TYPE_CHECKING:
    from support.driver import StubDriver

pytest_plugins = ["support.gpu_fixtures"]

ORIGINALS = sorted(Path(os.environ.get("JITLOAD_GUIDES", "/nonexistent")).glob("*.*"))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_it_launches_what_the_guide_says(spelling: str, stub_driver: StubDriver) -> None:
    module = load_affine(spelling, arch="sm_90")
    assert list(module) == ["affine"]
    x, y = CudaArray(np.zeros(300, np.float32)), CudaArray(np.zeros(300, np.float32))
    module.affine(tensor_of(x), tensor_of(y), 2.0, 0.5)
    (launch,) = stub_driver.launches()
    assert (launch.kernel, launch.grid, launch.block) == ("affine", (3, 1, 1), (128, 1, 1))
    assert launch.arguments == (
        struct.pack("Q", x.address),
        struct.pack("Q", y.address),
        struct.pack("f", 2),
        struct.pack("f", 0.5),
        struct.pack("q", 300),
    )


def test_a_wrong_call_is_upstreams_error() -> None:
    with pytest.raises(TypeError, match="Mismatched number of arguments"):
        load_affine("driver", arch="sm_90").affine(1)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_result_is_torchs(spelling: str) -> None:
    import torch

    x = torch.randn(100_003, device="cuda")
    y = torch.empty_like(x)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        load_affine(spelling).affine(x, y, 2.0, 0.5)
    stream.synchronize()
    torch.testing.assert_close(y, x * 2 + 0.5)


# ---- the originals ---------------------------------------------------------------------------------------------


def programs() -> dict[str, str]:
    """Return the programs of the guides in the directory JITLOAD_GUIDES, their imports changed."""
    found: dict[str, Any] = {}
    for path in ORIGINALS:
        text = path.read_text(encoding="utf-8")
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
            if "nvrtc.nvrtc_compile(" in block:
                block = block.replace("from tvm_ffi import cpp", "import jitload as cpp")  # noqa: PLW2901
                found[f"{path.stem}-{number}"] = block.replace(
                    "from tvm_ffi.cpp import nvrtc", "from jitload import nvrtc"
                )
    return found


@pytest.mark.skipif(not ORIGINALS, reason="JITLOAD_GUIDES names no directory with the guides")
@pytest.mark.parametrize("program", programs().values() or [""], ids=programs().keys() or ["none"])
def test_the_original_loads(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    if not torch.cuda.is_available():
        monkeypatch.setenv("JITLOAD_ARCH", "sm_90a")
        program = program.partition("# Step 5")[0]  # from here on it uses a GPU
    names: dict[str, Any] = {}
    exec(program, names)
    assert list(names["mod"]) == ["add_one"]
