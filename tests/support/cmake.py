"""CMake, run on projects that tests write."""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from builds import ROOT

from jitload.cmake import config
from jitload.settings import read_settings
from jitload.toolchain.host import find_ninja

# The program in the wheel, not the script in Python that starts it.
_IN_WHEEL = str(Path(sysconfig.get_path("platlib"), "cmake", "data", "bin"))
CMAKE = shutil.which("cmake", path=os.pathsep.join((_IN_WHEEL, os.environ.get("PATH", ""))))
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
NINJA = ("-GNinja", f"-DCMAKE_MAKE_PROGRAM={find_ninja(read_settings())}")

MACRO = '#include "n.h"\n__device__ int x;\nextern "C" __global__ void k() { x = N + M; }\n'
USER = """\
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
#include <tvm/ffi/function.h>
#include "text.h"
TVM_FFI_EMBED_CUBIN(one);
TVM_FFI_EMBED_CUBIN(two);
void Run() {
  static auto one = TVM_FFI_EMBED_CUBIN_GET_KERNEL(one, "k");
  static auto two = TVM_FFI_EMBED_CUBIN_GET_KERNEL(two, "empty");
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(one.Launch(nullptr, tvm::ffi::dim3(BLOCKS), tvm::ffi::dim3(1), nullptr));
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(two.Launch(nullptr, tvm::ffi::dim3(9), tvm::ffi::dim3(1), nullptr));
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Run);
"""


def cmake(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(CMAKE), *map(str, arguments)]
    return subprocess.run(command, env=env or ENVIRONMENT, capture_output=True, text=True, check=False)


def configure(source: Path, build: Path, *options: str) -> subprocess.CompletedProcess[str]:
    variables = (f"-Djitload_ROOT={config.cmake_dir()}", f"-DPython_EXECUTABLE={sys.executable}", *options)
    generator = () if any(option.startswith("-G") for option in options) else NINJA
    return cmake("-S", source, "-B", build, *generator, *variables)


def make(build: Path) -> str:
    """Build, and return what was said."""
    done = cmake("--build", build)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_project(directory: Path, text: str, **files: str) -> Path:
    lines = [
        "cmake_minimum_required(VERSION 3.20)",
        "project(p LANGUAGES CXX)",
        "find_package(jitload CONFIG REQUIRED)",
    ]
    directory.mkdir(exist_ok=True)
    (directory / "CMakeLists.txt").write_text(text if "project(" in text else "\n".join([*lines, text]))
    for name, content in files.items():
        (directory / name.replace("_", ".")).write_text(content)
    return directory


def refused(directory: Path, text: str, *options: str) -> str:
    """Return what the configuration of a project says, in one line."""
    done = configure(write_project(directory, text), directory / "build", *options)
    assert done.returncode != 0
    return " ".join(done.stderr.split())


def change(path: Path, text: str) -> None:
    """Write a file, later than what was built by more than a file system's clock may miss."""
    time.sleep(0.05)
    path.write_text(text)
