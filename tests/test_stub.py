"""Type stubs of modules, as a type checker reads them."""

from __future__ import annotations

import subprocess
import sys

from builds import load

SOURCE = r"""
// Scales x; "in place" \ '''.
extern "C" __global__ void scale(float* x, float factor, int n, bool is_fast) {}
// Moves x "by a vector"
extern "C" __global__ void shift(const float4* x, float3 by) {}
extern "C" __global__ void lambda(int* in) {}
"""
PROGRAM = """
import torch
from vec import scale, shift

x = torch.zeros(3)
scale(x, 2.0, 3, True)
scale[1, 32](x, 2.0, 3, True)
scale.call(x, factor=2.0, n=3, is_fast=True)
reveal_type(scale(x, 2.0, 3, True))
scale(x, "2", 3, True)
shift(x)
"""


def test_a_type_checker_reads_the_stub(tmp_path):
    path = load(SOURCE, arch="cpu").write_stub(tmp_path / "vec.pyi")
    text = path.read_text()
    assert "shift: _shift" in text
    assert "lambda" not in text  # a keyword: it is called as getattr(mod, "lambda")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "torch.pyi").write_text("class Tensor: ...\ndef zeros(*args: int) -> Tensor: ...\n")  # it takes seconds
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 'program.py:9: note: Revealed type is "None"' in done.stdout
    assert [line.partition(" [")[0].strip() for line in done.stdout.splitlines() if "error: " in line] == [
        'program.py:10: error: Argument 2 to "__call__" of "_scale" has incompatible type "str"; expected "float"',
        'program.py:11: error: Too few arguments for "__call__" of "_shift"',
    ]
