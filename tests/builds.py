"""What the tests of building share: a few kernels, and programs run in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jitload

ROOT = Path(__file__).parent.parent
ARCH = "sm_90a"
ADD = """
// Add one.
extern "C" __global__ void add(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1;
}
"""

# C without a header: what VALUE is, as a function of tvm-ffi's.
EXPORT = """
#include <tvm/ffi/c_api.h>
TVM_FFI_DLL_EXPORT int __tvm_ffi_get(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = VALUE;
  return 0;
}
"""


def kernel(name: str, body: str = "") -> str:
    """Return the text of a small kernel."""
    return f'extern "C" __global__ void {name}(float* x) {{ {body} }}\n'


def load(text: Any, name: str = "m", **options: Any) -> Any:
    """Build and load for one architecture."""
    return jitload.load_inline(name, cuda_sources=text, **{"arch": ARCH, **options})


def build(text: Any, name: str = "m", **options: Any) -> Path:
    """Build for one architecture; this imports neither tvm-ffi nor torch."""
    return Path(jitload.build_inline(name, cuda_sources=text, **{"arch": ARCH, **options}))


def message(error: type[jitload.JitLoadError], text: Any, **options: Any) -> str:
    """Return what a build that fails says."""
    import pytest  # programs that import this file do not need it

    with pytest.raises(error) as caught:
        build(text, **options)
    assert type(caught.value) is error
    return caught.value.message()


def run_python(
    code: str, env: Mapping[str, str] | None = None, arguments: Sequence[object] = (), **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own that finds jitload and these helpers."""
    return _run([*python_command(code), *map(str, arguments)], python_env(env), **options)


def run_jitload(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command `jitload`."""
    return _run([sys.executable, "-m", "jitload", *map(str, words)], python_env(), **options)


def _run(command: list[str], env: Mapping[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, **options)


def output_of(code: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a program like `run_python`, and return what it prints; it must exit with 0."""
    done = run_python(code, environment, arguments, timeout=300)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def start_python(code: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start such a program; what it prints can be read as it comes."""
    return subprocess.Popen(python_command(code), env=python_env(env), stdout=subprocess.PIPE, text=True)


def python_command(code: str) -> list[str]:
    """Return the command of a program, without torch and NumPy, which tvm-ffi would import, unless it names them."""
    if "torch" not in code:
        unused = ["torch"] if "numpy" in code else ["torch", "numpy"]
        code = f"import sys; sys.modules.update(dict.fromkeys({unused}))\n{code}"
    return [sys.executable, "-W", "error", "-c", code]


def python_env(env: Mapping[str, str] | None = None) -> dict[str, str]:
    search = (str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(search), **(env or {})}


def work_dirs(cache_dir: Path) -> list[str]:
    """Return what failed builds left behind."""
    return sorted(os.listdir(cache_dir / ".work")) if (cache_dir / ".work").is_dir() else []
