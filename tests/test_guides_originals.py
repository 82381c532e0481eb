"""The guides' own code, its imports changed: each program runs, each piece of C++ compiles and loads.

`JITLOAD_GUIDES` names the directory with the texts. What a fragment leaves out stands in `guides/originals.py`.
"""

import functools
import os
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
from guides.originals import Piece, complete, find_pieces

import jitload

WHERE = Path(os.environ.get("JITLOAD_GUIDES", "."))
PIECES = find_pieces(WHERE) if "JITLOAD_GUIDES" in os.environ else []
pytestmark = pytest.mark.skipif(not PIECES, reason="JITLOAD_GUIDES names no directory with the guides")

KERNELS = """
extern "C" __global__ void add_one(float* x, float* y, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1.0f;
}"""
IMPORTS = (
    ("from tvm_ffi import cpp", "import jitload as cpp"),
    ("from tvm_ffi.cpp import nvrtc", "from jitload import nvrtc"),
    ("import tvm_ffi\n", "import jitload as tvm_ffi\n"),
)


def pieces(*languages: str) -> Any:
    """Parametrise a test over the pieces in some languages."""
    pieces = [piece for piece in PIECES if piece.language in languages]
    return pytest.mark.parametrize("piece", pieces, ids=[piece.name for piece in pieces])


def piece_of(text: str) -> Piece:
    """Return the piece that has a text in it."""
    return next(piece for piece in PIECES if text in piece.text)


@functools.cache
def has_gpu() -> bool:
    """Return whether the results can be checked, too."""
    import torch

    return torch.cuda.is_available()


@functools.cache
def kernels() -> bytes:
    return jitload.compile_cubin(KERNELS, arch="native" if has_gpu() else "sm_90a").data


@pytest.fixture(autouse=True)
def _arch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not has_gpu():
        monkeypatch.setenv("JITLOAD_ARCH", "sm_90a")
    monkeypatch.chdir(tmp_path)


def run(program: str, **names: Any) -> dict[str, Any]:
    """Run a program, its imports changed; without a GPU, as far as it needs none."""
    for old, new in IMPORTS:
        program = program.replace(old, new)
    if not has_gpu():
        program = re.split(r"(?m)^.*device=\"cuda\"", program)[0]
    program = re.sub(r"(?m)^ (?=mod\.)", "", program)  # a diff's indentation
    Path("program.py").write_text(program, encoding="utf-8")  # a Triton kernel is read from its file
    return runpy.run_path("program.py", names)


@pieces("cpp", "c")
def test_a_piece_of_cpp_compiles_and_loads(piece):
    text = complete(piece)
    if "<<<" in text and shutil.which("nvcc") is None:
        pytest.skip("it has <<<…>>>, and there is no nvcc")
    embedded = {name: kernels() for name in re.findall(r"^TVM_FFI_EMBED_CUBIN\((\w+)\)", text, re.MULTILINE)}
    name = piece.name.replace("-", "_")
    module = jitload.load_inline(f"piece_{name}", cuda_sources=text, embed_cubin=embedded or None)
    assert list(module) == re.findall(r"TYPED_FUNC\((\w+),", text)


def test_the_kernel_librarys_header_compiles_and_loads(tmp_path):
    header = piece_of("KERNEL_LIBRARY_TVM_FFI_UTILS_H_")
    (tmp_path / "tvm_ffi_utils.h").write_text(header.text, encoding="utf-8")
    code = """
#include "tvm_ffi_utils.h"
int64_t check(TensorView x, Optional<TensorView> y) {
  CHECK_INPUT(x);
  CHECK_DIM(1, x);
  if (y.has_value()) CHECK_DEVICE(x, y.value());
  return reinterpret_cast<int64_t>(get_cuda_stream(x.device())) + (x.dtype() == dl_bfloat16);
}
ffi::Tensor make(TensorView like) { return alloc_tensor({4}, dl_float16, like.device()); }
"""
    module = jitload.load_inline(
        "library_header",
        cuda_sources=code,
        functions=["check", "make"],
        extra_include_paths=[str(tmp_path)],
        kind="host",
    )
    import torch

    with pytest.raises(ValueError, match="x must be a CUDA tensor"):
        module.check(torch.zeros(3), None)
    assert module.make(torch.zeros(3)).dtype == torch.float16


@pytest.mark.parametrize("stem", ["001", "002"])
def test_the_nvrtc_example(stem):
    (program,) = [p.text for p in PIECES if p.name.startswith(stem) and "nvrtc_compile(" in p.text]
    assert list(run(program)["mod"]) == ["add_one"]


def test_the_triton_example():
    pytest.importorskip("triton")
    if not has_gpu():
        pytest.skip("it starts with a launch by Triton, which needs a GPU")
    assert list(run(piece_of("@triton.jit").text)["mod"]) == ["launch_square"]


def test_a_cubin_from_a_file(tmp_path):
    (tmp_path / "kernel.cubin").write_bytes(kernels())
    wrapper = complete(piece_of("created via objcopy or cpp.load_inline"))
    assert list(run(piece_of('Path("kernel.cubin")').text, cpp_wrapper=wrapper)["mod"]) == ["launch_my_kernel"]


def test_the_headers_own_example_of_load_inline():
    wrapper = complete(piece_of("Declare embedded CUBIN module\nTVM_FFI_EMBED_CUBIN(my_kernels);\n\nvoid LaunchKernel"))
    wrapper += "TVM_FFI_DLL_EXPORT_TYPED_FUNC(launch, LaunchKernel);\n"
    module = run(piece_of("nvrtc.nvrtc_compile(cuda_source)\n").text, cuda_source=KERNELS, cpp_code=wrapper)["mod"]
    assert list(module) == ["launch"]
    if has_gpu():
        import torch

        x, y = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
        module.launch(x, y)
        assert torch.equal(y, x + 1)


def test_optional_arguments():
    import torch

    code = complete(piece_of("Optional<double> scale")) + "TVM_FFI_DLL_EXPORT_TYPED_FUNC(my_kernel, MyKernel);\n"
    module = jitload.load_inline("optional", cuda_sources=code, embed_cubin={"my_kernels": kernels()})
    x = torch.zeros(3)
    run(piece_of("mod.my_kernel(y, x, None, None)").text, mod=module, x=x, y=x, bias_tensor=x)


def test_the_kernel_library(tmp_path):
    if shutil.which("nvcc") is None:
        pytest.skip("it has <<<…>>>, and there is no nvcc")
    for name in ("tvm_ffi_utils.h", "scale_kernel.cu"):
        (piece,) = [piece for piece in PIECES if piece.language == f"file:{name}"]
        (tmp_path / name).write_text(piece.text, encoding="utf-8")
    (tmp_path / "build").mkdir()
    jitload.build("scale_kernel", sources=["scale_kernel.cu"], output="build/scale_kernel.so")
    assert list(jitload.load_module("build/scale_kernel.so")) == ["scale"]
    run(piece_of("[load_and_call.begin]\nimport torch").text)
