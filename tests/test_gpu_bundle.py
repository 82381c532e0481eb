"""A bundle on a GPU: built ahead, loaded and launched by a process that has no compiler and no NVRTC."""

import json
import subprocess
import sys

import pytest
from builds import ADD, python_env

from jitload.cli import main

pytest_plugins = ["support.gpu_fixtures"]
pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

_LAUNCH = {"grid": "ceil_div(n, 256)", "block": 256, "args": {"n": "x.numel()"}}
_PROGRAM = """
import sys, torch
import jitload
from jitload.toolchain import cuda

cuda._wheel_toolchains = cuda._toolkits = lambda *_: iter(())
launch = jitload.Launch(grid="ceil_div(n, 256)", block=256, args={"n": "x.numel()"})
mod = jitload.load_inline("vec", cuda_sources=sys.argv[1], functions={"add": launch})
x = torch.randn(100_003, device="cuda")
y = torch.empty_like(x)
mod.add(x, y)
torch.testing.assert_close(y, x + 1)
print("right")
"""


def test_it_is_launched_where_nothing_can_be_built(tmp_path, monkeypatch):
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "cache"))
    rows = [{"name": "vec", "cuda_sources": ADD, "functions": {"add": _LAUNCH}}]
    (tmp_path / "requests.json").write_text(json.dumps(rows))
    assert main(["prebuild", str(tmp_path / "requests.json"), "--bundle", str(tmp_path / "bundle"), "-q"]) == 0
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, ADD],
        env=python_env(
            {
                "JITLOAD_CACHE_DIR": str(tmp_path / "empty"),
                "JITLOAD_CACHE_PATH": str(tmp_path / "bundle"),
                "JITLOAD_MODE": "load-only",
                "JITLOAD_CXX": "none",
            }
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "right\n", done.stderr
