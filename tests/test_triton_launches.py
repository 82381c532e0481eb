"""The same kernel launched by Triton's own launcher and by ours: the driver gets the same, byte for byte.

This needs Triton, of any release from 3.6 on, and the C compiler with which it builds its launcher.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

import triton
from builds import python_env
from support.driver import build_stub

HERE = Path(__file__).parent
CASES = [(name, 90) for name in ("add", "pairs", "descriptors", "descriptors_pairs", "scratch")] + [("descriptors", 80)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Launch every case by both ways; return the directory of what was written down."""
    directory = tmp_path_factory.mktemp("stub")
    (directory / "libcuda.so").symlink_to(build_stub(directory).name)
    env = python_env(
        {
            "STUB": str(directory),
            "LD_LIBRARY_PATH": str(directory),
            "TRITON_LIBCUDA_PATH": str(directory),
            "TRITON_CACHE_DIR": str(directory / "triton"),
            "TRITON_DEFAULT_FP_FUSION": "1",
            "TRITON_DISABLE_LINE_INFO": "1",  # as jitload compiles, so that Triton's cache has it for both
        }
    )
    env["PYTHONPATH"] += os.pathsep + str(Path(triton.__file__).parents[1])
    cases = [f"{name}:{capability}" for name, capability in CASES]
    command = [sys.executable, str(HERE / "triton_launches.py"), *cases]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.mark.parametrize(("name", "capability"), CASES)
def test_the_driver_gets_what_triton_gives_it(name, capability, written):
    expected, got = (
        json.loads((written / f"{way}-{name}-{capability}.json").read_text()) for way in ("triton", "jitload")
    )
    assert got == expected
    assert len(expected["parameters"]) > 3
    assert len(expected["maps"]) == 3 * (capability == 90 and "desc" in name)
