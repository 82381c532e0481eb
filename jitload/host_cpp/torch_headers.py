"""Makes jitload's light replacements of torch's headers available under the names of torch's headers.

For each of torch's headers there is a file of the same name that includes one of the few light headers. These files are
written into a directory of the cache, once for each version of the table `FORWARDED`.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from jitload.toolchain.host import make_private_dir

# For each header in include/torch_light/jitload_torch/, the headers of torch that it replaces.
FORWARDED = {
    "dispatch.h": "ATen/ATen.h ATen/AccumulateType.h ATen/DeviceGuard.h ATen/Dispatch.h ATen/Functions.h "
    "ATen/OpMathType.h ATen/Tensor.h ATen/ceil_div.h ATen/core/Tensor.h ATen/core/TensorAccessor.h c10/core/Device.h "
    "c10/core/DeviceGuard.h c10/core/DeviceType.h c10/core/GradMode.h c10/core/InferenceMode.h c10/core/Layout.h "
    "c10/core/MemoryFormat.h c10/core/Scalar.h c10/core/ScalarType.h c10/core/TensorOptions.h "
    "c10/macros/Macros.h c10/util/ArrayRef.h c10/util/BFloat16.h c10/util/Exception.h "
    "c10/util/Float8_e4m3fn.h c10/util/Float8_e5m2.h c10/util/Half.h c10/util/Optional.h "
    "c10/util/StringUtil.h c10/util/irange.h torch/all.h torch/types.h",
    "pybind.h": "pybind11/pybind11.h pybind11/pytypes.h pybind11/stl.h torch/csrc/utils/pybind.h torch/extension.h "
    "torch/python.h torch/torch.h",  # in torch's build, torch/torch.h has PYBIND11_MODULE, too
    "library.h": "torch/library.h torch/script.h",
    "cuda.h": "ATen/cuda/CUDABlas.h ATen/cuda/CUDAContext.h ATen/cuda/CUDAContextLight.h ATen/cuda/CUDADevice.h "
    "ATen/cuda/CUDAUtils.h ATen/cuda/Exceptions.h ATen/cuda/detail/KernelUtils.h ATen/cudnn/Handle.h "
    "c10/cuda/CUDAException.h c10/cuda/CUDAFunctions.h c10/cuda/CUDAGuard.h c10/cuda/CUDAMacros.h "
    "c10/cuda/CUDAStream.h",
    "event.h": "ATen/cuda/CUDAEvent.h c10/cuda/CUDACachingAllocator.h c10/cuda/CUDAEvent.h",
    "device.h": "ATen/NumericLimits.cuh ATen/cuda/Atomic.cuh ATen/cuda/CUDAApplyUtils.cuh ATen/cuda/DeviceUtils.cuh "
    "ATen/cuda/NumericLimits.cuh c10/cuda/CUDAMathCompat.h",
    "parallel.h": "ATen/Parallel.h",
}


def find_or_write_torch_headers(cache_dir: Path) -> Path:
    """Return the directory of the files that stand in for torch's headers. Create it atomically if it is missing."""
    tools_dir = cache_dir / ".tools"
    directory = tools_dir / f"torch-headers-{hashlib.sha256(repr(FORWARDED).encode()).hexdigest()[:16]}"
    if directory.is_dir():
        return directory
    make_private_dir(tools_dir)
    fresh = Path(tempfile.mkdtemp(dir=tools_dir))
    try:
        for header, names in FORWARDED.items():
            for path in (fresh / name for name in names.split()):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f'#include "jitload_torch/{header}"\n')
        fresh.rename(directory)
    except OSError:  # raised if another process has made the directory, or if nothing can be written
        shutil.rmtree(fresh)
        if not directory.is_dir():
            raise
    return directory
