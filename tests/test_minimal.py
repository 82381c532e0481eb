"""What NVRTC leaves out for small sources (`--minimal`): sources that need it compile, and the code is the same."""

import pytest
from builds import kernel
from test_kernels import RUNS, compile_text

from jitload.errors import LaunchSpecError
from jitload.kernels.source import DeviceSource

NEED_MORE = {
    "an include": "#include <cuda_fp16.h>\n__global__ void k(__half* x) {}",
    "a texture": "__global__ void k(cudaTextureObject_t t, float* x) { x[0] = tex1D<float>(t, 0.5f); }",
    "what only a macro shows": "#define JOINED(a, b) a##b\n__global__ void k(JOINED(cud, aTextureObject_t)* x) {}",
    "a macro of the runtime's": "#ifdef CUDA_IPC_HANDLE_SIZE\n" + kernel("k") + "\n#endif",
    "whether something is left out": "#ifndef __CUDACC_RTC_MINIMAL__\n" + kernel("k") + "\n#endif",
    "a name of the runtime's headers": "enum { MAJOR_VERSION = 3 };\n" + kernel("k"),
}


@pytest.mark.parametrize("case", NEED_MORE)
def test_sources_that_need_what_nvrtc_can_leave_out_compile(case):
    assert [kernel.name for kernel in compile_text(NEED_MORE[case]).kernels] == ["k"]


@pytest.mark.parametrize("argument", ["cudaExtent", "CUstream_st", "libraryPropertyType"])
def test_a_launch_may_name_what_is_left_out(argument):
    text = "template <class T> __global__ void k(T* x) {}"
    compiled = compile_text(text, kernels=("k<float>", f"k<{argument}>"))
    assert [kernel.parameters[0].kind for kernel in compiled.kernels] == ["pointer"] * 2
    with pytest.raises(LaunchSpecError, match='The compiler says: identifier "none_such" is undefined'):
        compile_text(text, kernels=("k<none_such>",))


def test_what_is_left_out_changes_no_code(monkeypatch, nvrtc_runs):
    texts = [text for _, text in RUNS.values()]
    short = [compile_text(text).data for text in texts]
    assert all("--minimal" in job.options for job in nvrtc_runs)
    monkeypatch.setattr(DeviceSource, "is_minimal", False)
    assert [compile_text(text).data for text in texts] == short
