"""The same kernel launched by Triton's own launcher and by ours: the driver gets the same, byte for byte.

This needs Triton, of any release from 3.2 on, and the C compiler with which it builds its launcher.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("triton")

import triton
from builds import python_env
from support.driver import find_compiler

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """The libcuda that writes down, and where Triton keeps what it builds."""

    library: Path
    triton_cache: Path


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    directory = tmp_path_factory.mktemp("recorder")
    library = directory / "libcuda.so.1"
    flags = ["-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*find_compiler(), *flags, str(HERE / "support" / "recorder.c"), "-o", str(library)], check=True)
    (directory / "libcuda.so").symlink_to(library.name)
    return Recorder(library=library, triton_cache=tmp_path_factory.mktemp("triton_cache"))


def run(way: str, name: str, capability: int, recorder: Recorder, **environment: str) -> str:
    """Do one thing with a case in a process of its own, and return what it prints."""
    env = python_env(
        {
            "RECORDER": str(recorder.library),
            "RECORDER_CAPABILITY": str(capability),
            "LD_LIBRARY_PATH": str(recorder.library.parent),
            "TRITON_LIBCUDA_PATH": str(recorder.library.parent),
            "TRITON_CACHE_DIR": str(recorder.triton_cache),
            "TRITON_DEFAULT_FP_FUSION": "1",
            **environment,
        }
    )
    env["PYTHONPATH"] += os.pathsep + str(Path(triton.__file__).parents[1])
    command = [sys.executable, str(HERE / "triton_launches.py"), way, name, str(capability)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def launch(way: str, name: str, capability: int, recorder: Recorder, sizes: str) -> list[str]:
    """Launch a case, and return what was written down."""
    written = recorder.triton_cache / f"{way}-{name}-{capability}.txt"
    run(way, name, capability, recorder, RECORDER_FILE=str(written), RECORDER_SIZES=sizes)
    return written.read_text().splitlines()


@pytest.mark.parametrize(
    ("name", "capability"),
    [("add", 90), ("pairs", 90), ("descriptors", 90), ("descriptors", 80), ("descriptors_pairs", 90), ("scratch", 90)],
)
def test_the_driver_gets_what_triton_gives_it(name: str, capability: int, recorder: Recorder) -> None:
    if name not in ("add", "pairs") and not hasattr(triton.language, "make_tensor_descriptor"):
        pytest.skip("this Triton has no descriptors")
    sizes = run("sizes", name, capability, recorder).strip()
    expected = launch("triton", name, capability, recorder, sizes)
    assert launch("jitload", name, capability, recorder, sizes) == expected
    assert len([line for line in expected if line.startswith("parameter ")]) == len(sizes.split(","))
    assert len([line for line in expected if line.startswith("map ")]) == 3 * (capability == 90 and "desc" in name)
