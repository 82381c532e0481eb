"""What NVRTC leaves out for small sources (`--minimal`): when it is asked to, and that the code is the same."""

from contextlib import suppress

import pytest
from builds import ARCH, kernel
from test_kernels import RUNS, compile_text

import jitload
from jitload.errors import LaunchSpecError
from jitload.kernels.compilation import compile_for_arch
from jitload.kernels.source import DeviceSource
from jitload.settings import read_settings
from jitload.toolchain.cuda import find_cuda_toolchain

IS_MINIMAL = {
    "one kernel": ((True,), kernel("k"), ()),
    "names that nvcc brings": ((True, True), "__global__ void k(int64_t* x) {}", ()),
    "a candidate that is none": ((True, True), "#if 0\n__global__ void no() {}\n#endif\n" + kernel("k"), ()),
    "an include": ((False,), "#include <cuda_fp16.h>\n__global__ void k(__half* x) {}", ()),
    "an include of the options": ((False,), kernel("k"), ("-include=cstdint",)),
    "a texture": (
        (False,),
        "__global__ void k(cudaTextureObject_t t, float* x) { x[0] = tex1D<float>(t, 0.5f); }",
        (),
    ),
    "a type of the driver's": ((False,), "__global__ void k(CUuuid_st* x) {}", ()),
    "what the options ask for": ((False,), kernel("k"), ("--minimal",)),
    "what only a macro shows": (
        (True, False),
        "#define JOINED(a, b) a##b\n__global__ void k(JOINED(cud, aTextureObject_t)* x) {}",
        (),
    ),
    "a macro of the runtime's": ((False,), "#ifdef CUDA_IPC_HANDLE_SIZE\n" + kernel("k") + "\n#endif", ()),
    "whether something is left out": ((False,), "#ifndef __CUDACC_RTC_MINIMAL__\n" + kernel("k") + "\n#endif", ()),
    # NVRTC rejects the name, and the kernel, which does not use it, is compiled alone.
    "a name of the runtime's headers": ((False, True), "enum { MAJOR_VERSION = 3 };\n" + kernel("k"), ()),
    "an error": ((True, False), "__global__ void k() { nonsense; }", ()),
}


@pytest.mark.parametrize("case", IS_MINIMAL)
def test_small_sources_do_without_what_nvrtc_can_leave_out(case, nvrtc_runs):
    runs, text, options = IS_MINIMAL[case]
    with suppress(jitload.JitLoadError):
        compile_text(text, extra_cuda_cflags=options)
    added_options = [[option for option in job.options if option not in options] for job in nvrtc_runs]
    assert tuple("--minimal" in options_of_run for options_of_run in added_options) == runs


@pytest.mark.parametrize("argument", ["cudaExtent", "CUstream_st", "libraryPropertyType"])
def test_a_launch_may_name_what_is_left_out(argument):
    text = "template <class T> __global__ void k(T* x) {}"
    compiled = compile_text(text, kernels=("k<float>", f"k<{argument}>"))
    assert [kernel.parameters[0].kind for kernel in compiled.kernels] == ["pointer"] * 2
    with pytest.raises(LaunchSpecError, match='The compiler says: identifier "none_such" is undefined'):
        compile_text(text, kernels=("k<none_such>",))


def test_an_older_nvrtc_is_not_asked_to_leave_anything_out(nvrtc_runs):
    toolchain = find_cuda_toolchain(read_settings())
    source = DeviceSource(name="zoo", pieces=(("piece", kernel("k")),))
    compile_for_arch(source, ARCH, toolchain._replace(version=(12, 3)))
    assert "--minimal" not in nvrtc_runs[0].options


def test_what_is_left_out_changes_no_code(monkeypatch, nvrtc_runs):
    texts = [text for _, text in RUNS.values()]
    short = [compile_text(text).data for text in texts]
    assert all("--minimal" in job.options for job in nvrtc_runs)
    monkeypatch.setattr(DeviceSource, "is_minimal", False)
    assert [compile_text(text).data for text in texts] == short
