"""Kernels that are passed beside C++ with cubins."""

import pytest
from builds import ADD, ARCH, ROOT

import jitload
from jitload.errors import JitLoadError

STUB = (ROOT / "tests" / "data" / "stub_kernels.sm_90.cubin").read_bytes()


def test_kernels_beside_cubins_need_a_kind():
    words = (
        "module 'm': cuda_sources contains only kernels, but embed_cubin= says that it is C++. To compile the kernels, "
    )
    cpp = "#include <tvm/ffi/extra/cuda/cubin_launcher.h>\nTVM_FFI_EMBED_CUBIN(first);\nint run() { return 1; }\n"
    with pytest.raises(JitLoadError) as alone:
        jitload.build_inline("m", cuda_sources=ADD, embed_cubin={"first": STUB})
    assert str(alone.value) == (
        f"{words}pass kind='device' and leave embed_cubin= out; kind='host' passes them to the C++ compiler."
    )
    with pytest.raises(JitLoadError) as beside:
        jitload.build_inline("m", cuda_sources=ADD, cpp_sources=cpp, embed_cubin={"first": STUB})
    assert str(beside.value).startswith(f"{words}pass kind='device' and launch them with TVM_FFI_EMBED_CUBIN(m); ")
    cpp += "TVM_FFI_EMBED_CUBIN(m);"
    path = jitload.build_inline(
        "m", cuda_sources=ADD, cpp_sources=cpp, embed_cubin={"first": STUB}, functions="run", kind="device", arch=ARCH
    )
    assert jitload.load_module(path).run() == 1
