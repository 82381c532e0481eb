"""examples/kernel_wheel: its wheel is built, installed and used in environments with and without tools."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from builds import ROOT

import jitload
from jitload.building.native import NAMES, NATIVE_DIR, find_native

pytest.importorskip("hatchling", reason="it builds the wheels")

EXAMPLE = ROOT / "examples/kernel_wheel"
PROGRAM = """
import sys

sys.modules["torch"] = None  # it takes seconds to import
import numpy as np
import fast_ops, jitload
from fast_ops.requests import REQUEST

x = np.arange(1000, dtype=np.float32)
out = np.zeros_like(x)
fast_ops.scale(x, 2.0, 1.0, out)
assert (out == 2 * x + 1).all()
for arch in sys.argv[1:]:
    try:
        print(jitload.build(**REQUEST, arch=arch))
    except jitload.JitLoadError as error:
        print(type(error).__name__, error)
"""
ON_THE_GPU = """
import torch, fast_ops
x = torch.arange(1000, device="cuda", dtype=torch.float32)
out = torch.empty_like(x)
fast_ops.scale(x, 2.0, 1.0, out)
torch.testing.assert_close(out, 2 * x + 1)
print(fast_ops._kernels("native"))
"""
FROM_THE_HUB = """
import sys

sys.modules["torch"] = None
from pathlib import Path
import numpy as np
from kernels import get_local_kernel

fast_ops = get_local_kernel(Path(sys.argv[1]), backend="cpu")
x = np.arange(1000, dtype=np.float32)
out = np.zeros_like(x)
fast_ops.scale(x, 2.0, 1.0, out)
assert (out == 2 * x + 1).all()
assert "jitload" not in sys.modules
print("right")
"""


class Installed(NamedTuple):
    """The example's wheel, the directory that it and jitload are installed in, its project, and the cache."""

    wheel: Path
    site: Path
    project: Path
    cache: Path


def run_in(env: dict[str, str], *command: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, *command], env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# Stands for the C++ compiler: the machine code in jitload's wheel is what this checkout has been compiled to.
HAND_OVER = """#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = -o ] && output=$2; shift; done
cp "{native}/${{output##*/}}" "$output" 2>/dev/null || touch "$output"
"""


@pytest.fixture(scope="module")
def installed(used_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build jitload's wheel and the example's, the latter from its sdist, and unpack both, as pip does, but faster."""
    home = tmp_path_factory.mktemp("wheel")
    site, cache, compiler = home / "site", home / "cache", home / "c++"
    project = Path(shutil.copytree(EXAMPLE, home / "project"))
    env = {**os.environ, "JITLOAD_CACHE_DIR": str(cache), "PYTHONPATH": str(site)}
    compiler.write_text(HAND_OVER.format(native=NATIVE_DIR))
    compiler.chmod(0o755)
    assert all(map(find_native, NAMES))  # `used_cache` has them built
    run_in({**env, "CXX": str(compiler)}, "-m", "hatchling", "build", "-t", "wheel", "-d", str(home), cwd=ROOT)
    unpack(home, f"jitload-{jitload.__version__}-py3-none-*.whl")
    assert (site / "jitload" / "native" / "runtime.o").stat().st_size > 1000
    run_in(env, "-m", "hatchling", "build", "-t", "sdist", "-d", str(home), cwd=project)
    build = ("-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-q", "-w", str(home))
    run_in(env, *build, str(home / "fast_ops-1.0.tar.gz"), cwd=home)
    return Installed(unpack(home, "fast_ops-*.whl"), site, project, cache)


def unpack(home: Path, pattern: str) -> Path:
    (wheel_path,) = home.glob(pattern)
    with zipfile.ZipFile(wheel_path) as wheel:
        wheel.extractall(home / "site")
    return wheel_path


def bare_env(installed: Installed, tmp_path: Path) -> dict[str, str]:
    """Return the environment of a machine with Python, NumPy and what jitload loads libraries with, and no tools."""
    dependencies = tmp_path / "dependencies"
    dependencies.mkdir()
    for name in ("tvm_ffi", "typing_extensions", "numpy"):
        path = Path(find_spec(name).origin)  # type: ignore[union-attr, arg-type]
        path = path.parent if path.name == "__init__.py" else path
        (dependencies / path.name).symlink_to(path)
    metadata = Path(distribution("apache-tvm-ffi")._path)  # type: ignore[attr-defined]
    (dependencies / metadata.name).symlink_to(metadata)
    search = os.pathsep.join((str(installed.site), str(dependencies)))
    return {"PATH": "/nowhere", "JITLOAD_NVRTC": "/nowhere", "HOME": str(tmp_path / "home"), "PYTHONPATH": search}


def test_the_installed_wheel_runs_without_compilers(installed, tmp_path):
    assert installed.wheel.name.startswith("fast_ops-1.0-py3-none-linux_")
    env = bare_env(installed, tmp_path)
    command = ("-S", "-c", PROGRAM, "cpu", "sm_80", "sm_86", "sm_90a", "sm_100a")
    for mode in ("auto", "load-only"):
        lines = run_in({**env, "JITLOAD_MODE": mode}, *command, cwd=tmp_path).splitlines()
        bundle = str(installed.site / "jitload_bundles" / "fast_ops" / "fast_ops-")
        assert all(line.startswith(bundle) for line in lines[:4])
        assert lines[1] == lines[2] != lines[3]  # a GPU of sm_86 runs the code for sm_80
        assert lines[4].startswith("CacheError" if mode == "load-only" else "ToolchainError")
        assert any(line.strip().startswith("archs: ") and line.endswith(" and sm_100a") for line in lines)
    assert not (tmp_path / "home").exists()  # nothing was built or written


def test_all_processes_choose_by_the_file_in_the_wheel(installed, tmp_path):
    file = installed.site / "fast_ops" / "tuned.json"
    copy = installed.site / "jitload_bundles" / "fast_ops" / "tuned.json"
    assert file.read_bytes() == copy.read_bytes() == (EXAMPLE / "fast_ops" / "tuned.json").read_bytes()
    env = {**bare_env(installed, tmp_path), "JITLOAD_MODE": "load-only"}
    first, second = (run_in(env, "-S", "-m", "fast_ops", cwd=tmp_path) for _ in range(2))
    assert first == second
    assert [line.rpartition(" ")[2] for line in first.splitlines()] == ["tuned", "tuned", "nearest"]


def test_an_architecture_that_is_missing_is_compiled_where_the_tools_are(installed, tmp_path):
    cache = tmp_path / "cache"
    env = {**os.environ, "PYTHONPATH": str(installed.site), "JITLOAD_CACHE_DIR": str(cache), "CPATH": str(tmp_path)}
    present, missing = run_in(env, "-c", PROGRAM, "sm_90a", "sm_86", cwd=tmp_path).splitlines()
    assert present.startswith(str(installed.site))  # the compiler differs from the one that built it: CPATH
    assert missing.startswith(str(cache))


def test_the_example_pins_this_release():
    text = (EXAMPLE / "pyproject.toml").read_text()
    for requirement in ("jitload", "jitload[cu13]"):
        assert text.count(f'"{requirement}=={jitload.__version__}"') == 1


def test_hugging_face_kernels_loads_its_build_variant(installed, tmp_path):
    pytest.importorskip("kernels")
    env = {**os.environ, "JITLOAD_CACHE_DIR": str(installed.cache), "PYTHONPATH": str(installed.site)}
    run_in(env, str(installed.project / "hub_build.py"), cwd=tmp_path)
    variants = sorted(path.name.split("-")[2] for path in (installed.project / "build").iterdir())
    assert variants == ["cpu", "cu130"]
    assert run_in(dict(os.environ), "-c", FROM_THE_HUB, str(installed.project), cwd=tmp_path) == "right\n"


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_on_a_gpu_nothing_is_built(installed, tmp_path):
    env = {**os.environ, "PYTHONPATH": str(installed.site), "JITLOAD_CACHE_DIR": str(tmp_path / "cache")}
    env |= {"JITLOAD_CXX": "none", "JITLOAD_NVRTC": "none", "JITLOAD_MODE": "load-only"}
    assert run_in(env, "-c", ON_THE_GPU, cwd=tmp_path).startswith("<jitload.Module 'fast_ops' (sm_")
    assert not list((tmp_path / "cache").glob("*-*"))
