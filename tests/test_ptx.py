"""PTX and LTO-IR to machine code, through nvJitLink, and libraries that hold PTX."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from builds import ADD
from support.calls import array, assert_refused, fresh
from support.fatbins import fatbin_of
from support.nvcc import needs_nvcc
from support.ptx import SOURCE, compile_to

import jitload
from jitload.cuda.fatbin import read_fatbin
from jitload.elf.file import ElfFile
from jitload.errors import CompileError, JitLoadError, LoadError, ToolchainError
from jitload.settings import read_settings
from jitload.toolchain.arch import runs_on
from jitload.toolchain.libraries import CudaToolchain, find_nvjitlink


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
    scale, *fill = cubin.kernels
    assert str(scale) == "scale(b64 arg0, b32 arg1, b32 arg2)"
    assert [*map(str, fill)] == ["fill<int>(int* arg0, int arg1)", "fill<double>(double* arg0, double arg1)"]
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


NEWER = "This PTX is newer than the linker. Install a newer linker (pip install -U nvidia-nvjitlink"
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
    words = "'k.ptx' is not PTX, LTO-IR or a fatbin: its bytes begin with b'\\x7fELF\\x02\\x01\\x01"
    assert refused(jitload.JitLoadError, cubin.data).startswith(words)
    with_nul = refused(jitload.JitLoadError, ptx.encode()[:200] + b"\0" + b"x")
    assert with_nul.startswith("'k.ptx' is PTX that contains a NUL character, at which linkers stop reading")
    assert "it takes one architecture, not sm_80, sm_90" in refused(ToolchainError, ptx, arch="sm_80,sm_90")
    with pytest.raises(jitload.JitLoadError, match=r"^m.cu is PTX, not CUDA source: compile it with compile_cubin"):
        jitload.build_inline("m", cuda_sources=ptx, arch="sm_80")


def test_a_fatbin_gives_the_machine_code_for_an_architecture(no_nvjitlink, tmp_path):
    """It takes no linker, and what it gives is typed as a cubin without source is."""
    older, newer = (jitload.compile_cubin(SOURCE, arch=arch).data for arch in ("sm_80", "sm_86"))
    accelerated = jitload.compile_cubin(SOURCE, arch="sm_90a").data
    fatbin = fatbin_of((2, 80, older), (2, 86, newer), (2, 90, accelerated))
    for arch, code in (("sm_80", older), ("sm_86", newer), ("sm_89", newer), ("sm_90a", accelerated)):
        taken = jitload.compile_cubin(fatbin, arch=arch)
        assert taken.data.startswith(code)
        assert "scale" in [kernel.name for kernel in taken.kernels]
    launch = jitload.Launch(signature="void scale(float* x, float factor, int n)", grid=1, block=32)
    taken = jitload.compile_cubin(fatbin, arch="sm_80")
    assert Path(jitload.build_inline("m", embed_cubin={"k": taken}, functions={"scale": launch})).exists()


def test_ptx_in_a_fatbin_and_what_nvcc_compresses_are_compiled_by_the_linker(ptx, tmp_path):
    fatbins = [fatbin_of((1, 80, ptx.encode() + b"\0"))]
    if shutil.which("nvcc"):
        source, output = tmp_path / "k.cu", tmp_path / "k.fatbin"
        source.write_text(SOURCE)
        command = ["nvcc", "-fatbin", "-arch=sm_80", "--compress-mode=size", source, "-o", output]
        subprocess.run(command, check=True)
        fatbins.append(output.read_bytes())
    for fatbin in fatbins:
        taken = jitload.compile_cubin(fatbin, arch="sm_90a")
        assert (taken.arch, "scale" in [kernel.name for kernel in taken.kernels]) == ("sm_90a", True)


def test_a_fatbin_with_nothing_for_an_architecture_says_what_it_has(ptx, cubin):
    words = "has neither PTX nor uncompressed machine code for sm_80; it has code for: sm_90a. Name one"
    assert words in refused(jitload.JitLoadError, fatbin_of((2, 90, cubin.data)), arch="sm_80")
    packed = fatbin_of((2, 80, b"compressed"))
    assert refused(jitload.JitLoadError, packed, arch="sm_80").endswith("compile the fatbin with --compress-mode=none.")
    damaged = refused(LoadError, fatbin_of((2, 90, cubin.data))[:-8], arch="sm_80")
    assert damaged.startswith("'k.ptx': this fatbin is damaged or cut off (")


def test_without_a_linker_the_error_names_the_command(ptx, no_nvjitlink):
    words = "needs nvJitLink, which was not found. Install it with: pip install nvidia-nvjitlink"
    assert words in refused(ToolchainError, ptx)


def test_nvjitlink_has_the_major_version_of_nvrtc(tmp_path, monkeypatch):
    for major in (12, 13):
        (tmp_path / f"libnvJitLink.so.{major}").touch()
    toolchain = CudaToolchain(12, (12, 9), tmp_path / "libnvrtc.so.12", (), "")
    monkeypatch.setattr("jitload.toolchain.cuda.find_cuda_toolchain", lambda _: toolchain)
    assert find_nvjitlink(read_settings()) == tmp_path / "libnvJitLink.so.12"


# ---- libraries with PTX ---------------------------------------------------------------------------------------------

LAUNCH = {"add": jitload.Launch(grid=1, block=32)}


@pytest.fixture(scope="module")
def both() -> str:
    return jitload.build_inline("both", cuda_sources=ADD, functions=LAUNCH, arch=("sm_80", "compute_80"))


@pytest.fixture(scope="module")
def only_ptx() -> str:
    return jitload.build_inline("only_ptx", cuda_sources=ADD, functions=LAUNCH, arch="compute_80")


def test_ptx_is_embedded_in_place_of_machine_code(both, only_ptx):
    machine_code = jitload.build_inline("neither", cuda_sources=ADD, functions=LAUNCH, arch="sm_80")
    counts = [Path(path).read_bytes().count(b".target sm_80") for path in (both, only_ptx, machine_code)]
    assert counts == [1, 1, 0]
    assert "(sm_80, compute_80)" in repr(jitload.load_module(both))
    assert "(compute_80)" in repr(jitload.load_module(only_ptx))


@pytest.mark.parametrize(
    ("capability", "loaded"), [((8, 0), ["80"]), ((8, 9), ["80"]), ((9, 0), ["PTX"]), ((12, 1), ["PTX"]), ((7, 5), [])]
)
def test_later_gpus_get_the_ptx(both, stub_driver, capability, loaded):
    stub_driver.set_device_count(1)
    stub_driver.set_capability(0, *capability)
    add = fresh(both).add
    if loaded == ["80"]:
        add(array(), array(), 4)
    elif loaded:  # the stub driver accepts PTX, but does not compile it
        with pytest.raises(RuntimeError, match="the driver cannot load the kernel: CUDA_ERROR_INVALID_IMAGE"):
            add(array(), array(), 4)
    else:
        text = 'add(): this library has sm_80, compute_80; this GPU, cuda:0, is sm_75: build it with arch="sm_75"'
        assert_refused(RuntimeError, text, add, array(), array(), 4)
    numbers = [call["capability"] for call in stub_driver.calls("cuLibraryLoadData")]
    assert ["PTX" if number == "0" else number for number in numbers] == loaded


def test_inspection_reads_the_machine_code(both, only_ptx):
    function = jitload.load_module(both).add
    assert "sm_80" in str(function.sass())
    with pytest.raises(JitLoadError, match="has no code for compute_80: the library has code for sm_80"):
        function.sass(arch="compute_80")
    with pytest.raises(JitLoadError, match=r"has only PTX in .*, which the driver compiles at the first launch"):
        jitload.load_module(only_ptx).add.sass()
    assert "compute_80" in jitload.load_module(both)._repr_html_()


def test_the_ptx_is_shown_wherever_it_is(both, only_ptx, tmp_path):
    mixed = jitload.build_inline("newer", cuda_sources=ADD, functions=LAUNCH, arch=("sm_80", "compute_90"))
    copies = [shutil.copy(path, tmp_path / f"{number}.so") for number, path in enumerate((both, mixed))]
    cases = [
        (both, None, "sm_80"), (both, "compute_80", "sm_80"), (only_ptx, None, "sm_80"), (only_ptx, "sm_80", "sm_80"),
        (mixed, None, "sm_80"), (mixed, "compute_90", "sm_90"), (mixed, "compute_80", "sm_80"),
        (copies[0], None, "sm_80"), (copies[1], "compute_90", "sm_90"),
    ]  # fmt: skip
    for path, arch, target in cases:
        ptx = jitload.load_module(path).add.ptx(arch=arch)
        assert f".target {target}\n" in ptx, (path, arch)
        assert ".visible .entry" in ptx
    with pytest.raises(JitLoadError, match=r"^add\(\) has PTX for compute_80: name one of these, arch='compute_80'$"):
        jitload.load_module(only_ptx).add.ptx(arch="compute_90")
    with pytest.raises(JitLoadError, match=r"^add\(\) has no PTX: .* has only machine code for sm_80; the"):
        jitload.load_module(copies[1]).add.ptx()


@needs_nvcc
def test_nvccs_libraries_hold_the_ptx():
    text = "__global__ void one(float* x) { *x = 1; }\nvoid run(float* x) { one<<<1, 1>>>(x); }"
    library = jitload.build_inline("both", cuda_sources=text, functions=["run"], arch=("sm_80", "compute_90"))
    sections = {section.name: section for section in ElfFile(Path(library).read_bytes()).sections}
    fatbin = bytes(sections[".nv_fatbin"].data)
    assert [entry.arch for entry in read_fatbin(fatbin)] == ["sm_80", "compute_90"]


MACHINE_CODE_ONLY: dict[str, Callable[[], object]] = {
    "compile_cubin": lambda: jitload.compile_cubin(ADD, arch="compute_90"),
    "nvrtc_compile": lambda: jitload.nvrtc.nvrtc_compile(ADD, arch="compute_90"),
    "cubins": lambda: jitload.load_inline("m", embed_cubin={"k": jitload.compile_cubin(ADD, arch="sm_90")},
                                          arch="compute_90"),
}  # fmt: skip


@pytest.mark.parametrize("make", MACHINE_CODE_ONLY.values(), ids=MACHINE_CODE_ONLY)
def test_ptx_is_refused_where_only_machine_code_is_possible(make):
    with pytest.raises(ToolchainError, match=r"'compute_90' stands for PTX: name an architecture, arch='sm_90'"):
        make()


RUNS = ("compute_80 sm_80", "compute_80 sm_100a", "compute_90a sm_90a", "compute_100f sm_103", "compute_75 compute_80")
NOT_RUN = (
    "compute_90 sm_89", "compute_90a sm_100", "compute_100f sm_120", "sm_80 compute_80", "compute_80 compute_75",
)  # fmt: skip


def test_which_architectures_run_which_code():
    assert all(runs_on(*pair.split()) for pair in RUNS)
    assert not any(runs_on(*pair.split()) for pair in NOT_RUN)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("arch", [("sm_80", "compute_80"), "compute_90", ("cpu", "compute_75")])
def test_ptx_computes_on_a_later_gpu(arch):
    import torch

    module = jitload.load_inline("later", cuda_sources=ADD, functions=LAUNCH, arch=arch)
    x, y = torch.arange(32.0, device="cuda"), torch.ones(32, device="cuda")
    expected = x + 1
    module.add(x, y, 32)
    torch.testing.assert_close(y, expected)
