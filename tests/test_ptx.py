"""PTX and LTO-IR to machine code, through nvJitLink."""

import pytest
from builds import ADD
from support.fatbins import fatbin_of
from support.ptx import compile_to

import jitload
from jitload.errors import CompileError, ToolchainError
from jitload.settings import read_settings
from jitload.toolchain.cuda import CudaToolchain, find_nvjitlink

pytest_plugins = ["support.ptx_fixtures"]


@pytest.fixture
def no_nvjitlink(monkeypatch):
    monkeypatch.setattr("jitload.kernels.ptx.find_nvjitlink", lambda _: None)


def test_source_text_that_speaks_of_a_version_stays_source():
    (kernel,) = jitload.compile_cubin("// .version 8.0\n" + ADD, arch="sm_80").kernels
    assert kernel.parameters[0].type == "const float*"


@pytest.mark.parametrize("form", [str, bytes, bytearray, memoryview, "with a NUL"])
def test_ptx_becomes_a_cubin_with_what_is_known(ptx, form):
    text = ptx.encode() + b"\0" if form == "with a NUL" else ptx if form is str else form(ptx.encode())
    cubin = jitload.compile_cubin(text, name="scale.ptx", arch="sm_90a")
    assert cubin.arch == "sm_90a"
    assert [str(kernel) for kernel in cubin.kernels] == [
        "scale(b64 arg0, b32 arg1, b32 arg2)",
        "fill<int>(int* arg0, int arg1)",
        "fill<double>(double* arg0, double arg1)",
    ]
    scale = next(kernel for kernel in cubin.kernels if kernel.name == "scale")
    assert [(p.kind, p.size, p.offset) for p in scale.parameters] == [("bits", 8, 0), ("bits", 4, 8), ("bits", 4, 12)]
    assert scale.registers > 0
    assert [(variable.name, variable.size) for variable in cubin.variables] == [("table", 16)]


@pytest.mark.usefixtures("ptx")
def test_lto_ir_becomes_a_cubin():
    cubin = jitload.compile_cubin(compile_to("LTOIR", "--gpu-architecture=sm_90", "-dlto"), arch="sm_90")
    assert {kernel.name for kernel in cubin.kernels} == {"scale", "fill<double>", "fill<int>"}


def test_the_linkers_options_may_be_written_as_nvccs(ptx):
    flags = ["-Xptxas", "-v", "--maxrregcount=32", "-lineinfo", "-O3"]
    log = jitload.compile_cubin(ptx, arch="sm_80", extra_cuda_cflags=flags).log
    assert "Compiling entry function 'scale' for 'sm_80'" in log


def refused(error, source, arch="sm_90", **options) -> str:
    with pytest.raises(error) as caught:
        jitload.compile_cubin(source, name="k.ptx", arch=arch, **options)
    assert type(caught.value) is error
    return caught.value.message()


def test_bad_ptx_is_told_in_the_linkers_words_with_its_line(ptx):
    bad = ptx.replace("st.global", "st.glob", 1)
    with pytest.raises(CompileError) as caught:
        jitload.compile_cubin(bad, name="k.ptx", arch="sm_90")
    line = bad[: bad.index("st.glob.")].count("\n") + 1
    error = caught.value
    assert (error.stage, error.diagnostics[0].line, error.diagnostics[0].file) == ("ptx", line, "k.ptx")
    assert str(error).startswith(f"the linker could not compile 'k.ptx' for sm_90: k.ptx:{line}: ")
    assert f"ptxas application ptx input, line {line}; error" in error.log


NEWER = "This PTX is newer than the linker. Install a newer linker (pip install -U nvidia-nvjitlink)"
OPTIONS = "takes only the linker's options, such as '-maxrregcount=32', '-Xptxas=-v' and '-lineinfo'."


@pytest.mark.parametrize(
    ("line", "arch", "options", "says"),
    [
        (".version 99.9", "sm_90", {}, NEWER),
        (".target sm_80", "sm_75", {}, "This PTX is for sm_80, and not for sm_75. Compile it for arch='"),
        (".target sm_90a", "sm_90", {}, "This PTX is for sm_90a, and not for sm_90. Compile it for arch="),
        (".target sm_90a", "sm_100a", {}, "This PTX is for sm_90a, and not for sm_100a."),
        (".target sm_100f", "sm_120", {}, "This PTX is for sm_100f, and not for"),
        (".target sm_80", "sm_50", {}, "nvJitLink does not know sm_50 (for 'k.ptx'):\n"),
        (".target sm_80", "sm_90", {"extra_cuda_cflags": ["--use_fast_math"]}, OPTIONS),
    ],
)
def test_what_the_linker_refuses_has_advice(ptx, line, arch, options, says):
    directive = line.split()[0]
    changed = ptx.replace(ptx[ptx.index(directive) :].split("\n")[0], line)
    error = ToolchainError if arch == "sm_50" else CompileError
    assert says in refused(error, changed, arch=arch, **options)


def test_other_sources_and_several_architectures_are_refused(ptx, cubin):
    words = "'k.ptx' is not PTX or LTO-IR: its bytes begin with b'\\x7fELF\\x02\\x01\\x01"
    assert refused(jitload.JitLoadError, cubin.data).startswith(words)
    extract = "'cuobjdump -xelf all' extracts the cubins of a fatbin."
    assert refused(jitload.JitLoadError, fatbin_of((2, 90, cubin.data))).endswith(extract)
    with_nul = refused(jitload.JitLoadError, ptx.encode()[:200] + b"\0" + b"x")
    assert with_nul.startswith("'k.ptx' is PTX that contains a NUL character, at which linkers stop reading")
    assert "it takes one architecture, not sm_80, sm_90" in refused(ToolchainError, ptx, arch="sm_80,sm_90")
    with pytest.raises(jitload.JitLoadError, match=r"^m.cu is PTX, not CUDA source: compile it with compile_cubin"):
        jitload.build_inline("m", cuda_sources=ptx, arch="sm_80")


def test_without_a_linker_the_error_names_the_command(ptx, no_nvjitlink, monkeypatch):
    words = (
        "compiling PTX ('k.ptx') needs nvJitLink, which was not found. Install it with: pip install nvidia-nvjitlink"
    )
    assert refused(ToolchainError, ptx).startswith(words)
    monkeypatch.setenv("JITLOAD_NVRTC", "12")
    assert refused(ToolchainError, ptx).endswith(" Install it with: pip install nvidia-nvjitlink-cu12")


def test_nvjitlink_has_the_major_version_of_nvrtc(tmp_path, monkeypatch):
    for major in (12, 13):
        (tmp_path / f"libnvJitLink.so.{major}").touch()
    toolchain = CudaToolchain(12, (12, 9), tmp_path / "libnvrtc.so.12", (), "")
    monkeypatch.setattr("jitload.toolchain.cuda.find_cuda_toolchain", lambda _: toolchain)
    assert find_nvjitlink(read_settings()) == tmp_path / "libnvJitLink.so.12"
