"""Writes build/, from which Hugging Face's `kernels` loads this package. It needs tvm-ffi there, and not jitload."""

import json
import platform
import re
import shutil
from importlib.metadata import version
from pathlib import Path

from fast_ops.requests import ARCHS, REQUEST

import jitload

ROOT = Path(__file__).parent
TVM_FFI = "tvm-ffi" + "".join(version("apache-tvm-ffi").split(".")[:2])
GPU_ARCHS = [arch for arch in ARCHS if arch != "cpu"]
BACKENDS = {
    "cpu": ["cpu"],
    "cu130": GPU_ARCHS,
}  # cu130: built by an NVRTC of CUDA 13, for torch with CUDA 13.0 and newer

for backend, archs in BACKENDS.items():
    variant = ROOT / "build" / f"{TVM_FFI}-{backend}-{platform.machine()}-linux"
    variant.mkdir(parents=True, exist_ok=True)
    jitload.build(**REQUEST, arch=archs, output=variant / "fast_ops.so")
    shutil.copy(ROOT / "fast_ops" / "__init__.py", variant)
    capabilities = [re.sub(r"sm_(\d+)(\d)", r"\1.\2", arch) for arch in archs]  # 9.0a
    metadata = {
        "name": "fast-ops",
        "id": f"fast_ops_{backend}_1",
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": ["tvm-ffi"],
        "backend": {"type": "cpu"} if backend == "cpu" else {"type": "cuda", "archs": capabilities},
    }
    (variant / "metadata.json").write_text(json.dumps(metadata, indent=2))
