"""Makes jitload's light replacements of torch's headers available under the names of torch's headers.

For each of torch's headers there is a file of the same name that includes one of the few light headers, or a copy of
the header itself if it is small and needs nothing else. These files are written into a directory of the cache, once for
each version of the tables and each release of torch.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sysconfig
import tempfile
from pathlib import Path

from jitload.request.torch_operators import COPIED, read_header, torch_abi
from jitload.toolchain.private_files import make_private_dir

# For each header in include/torch_light/jitload_torch/, the headers of torch that it replaces.
FORWARDED = {
    "tensor.h": "ATen/ATen.h ATen/Context.h ATen/DeviceGuard.h ATen/Functions.h ATen/NativeFunctions.h "
    "ATen/NumericUtils.h ATen/OpMathType.h ATen/Scalar.h ATen/ScalarType.h ATen/Tensor.h ATen/TensorOptions.h "
    "ATen/ceil_div.h ATen/core/Tensor.h ATen/core/TensorAccessor.h torch/serialize/tensor.h c10/core/Stream.h "
    "c10/core/Device.h c10/core/DeviceGuard.h c10/core/DeviceType.h c10/core/GradMode.h c10/core/InferenceMode.h "
    "c10/core/Layout.h c10/core/MemoryFormat.h c10/core/Scalar.h c10/core/ScalarType.h c10/core/TensorOptions.h "
    "c10/macros/Macros.h c10/util/ArrayRef.h c10/util/BFloat16.h c10/util/Exception.h c10/util/Half.h "
    "c10/util/Optional.h c10/util/StringUtil.h torch/all.h torch/types.h ATen/Parallel.h ATen/TensorUtils.h",
    "pybind.h": "pybind11/pybind11.h pybind11/pytypes.h pybind11/stl.h torch/csrc/utils/pybind.h torch/extension.h "
    "torch/python.h torch/torch.h",  # in torch's build, torch/torch.h has PYBIND11_MODULE, too
    "library.h": "torch/library.h torch/script.h",
    "cuda.h": "ATen/cuda/CUDABlas.h ATen/cuda/CUDAContext.h ATen/cuda/CUDAContextLight.h ATen/cuda/CUDADevice.h "
    "ATen/cuda/CUDAApplyUtils.cuh ATen/cuda/CUDAUtils.h ATen/cuda/Exceptions.h "
    "c10/cuda/CUDACachingAllocator.h c10/cuda/CUDAException.h c10/cuda/CUDAFunctions.h c10/cuda/CUDAGuard.h "
    "c10/cuda/CUDAMacros.h c10/cuda/CUDAStream.h",
}
# Torch has these headers for older extensions. They only include another of its headers.
RENAMED = {"THC/THCAtomics.cuh": "ATen/cuda/Atomic.cuh", "THC/THCDeviceUtils.cuh": "ATen/cuda/DeviceUtils.cuh"}
_LEFT_OUT = re.compile(r"(?:torch|ATen|c10)/.*|cuda\.h")
_INCLUDE = re.compile(r"^#include <(.+)>", re.MULTILINE)


def find_or_write_torch_headers(cache_dir: Path) -> Path:
    """Return the directory of the files that stand in for torch's headers. Create it atomically if it is missing."""
    tools_dir = cache_dir / ".tools"
    # torch's build also finds Python.h, which includes Python's other headers from its own directory.
    python_header = f'#include "{sysconfig.get_path("include")}/Python.h"\n'
    facts = repr((FORWARDED, COPIED, RENAMED, torch_abi(), python_header))
    directory = tools_dir / f"torch-headers-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"
    if directory.is_dir():
        return directory
    make_private_dir(tools_dir)
    fresh = Path(tempfile.mkdtemp(dir=tools_dir))
    try:
        texts = {name: text for name in COPIED.split() if (text := _copy(name))} | {"Python.h": python_header}
        for header, names in FORWARDED.items():
            texts |= dict.fromkeys(names.split(), f'#include "jitload_torch/{header}"\n')
        texts |= {name: f"#include <{other}>\n" for name, other in RENAMED.items()}
        for name, text in texts.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            (fresh / name).write_text(text)
        fresh.rename(directory)
    except OSError:  # raised if another process has made the directory, or if nothing can be written
        shutil.rmtree(fresh)
        if not directory.is_dir():
            raise
    return directory


def _copy(name: str) -> str:
    """Return the text of one of torch's headers, which includes the light headers instead of others of torch's."""

    def include(match: re.Match[str]) -> str:
        if not _LEFT_OUT.fullmatch(match[1]) or match[1] in COPIED.split():
            return match[0]
        return f'#include "jitload_torch/{"cuda" if match[1] in FORWARDED["cuda.h"].split() else "tensor"}.h"'

    text = _INCLUDE.sub(include, read_header(name))
    # Torch's headers get numeric_limits from headers that are replaced, and g++ 13 includes it in fewer of its own.
    return f"#include <limits>\n{text}" if "numeric_limits" in text else text
