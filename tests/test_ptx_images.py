"""Libraries with PTX, `arch=("sm_80", "compute_80")`, and libraries without code for a GPU."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from builds import ADD
from support.calls import array, assert_refused, fresh
from support.nvcc import needs_nvcc

import jitload
from jitload.cuda.fatbin import read_fatbin
from jitload.elf.file import ElfFile
from jitload.errors import JitLoadError, ToolchainError
from jitload.toolchain.arch import runs_on

pytest_plugins = ["support.gpu_fixtures"]

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


RUNS_ON = (
    "compute_80 sm_80",
    "compute_80 sm_100a",
    "compute_90a sm_90a",
    "compute_100f sm_103",
    "compute_75 compute_80",
)
DOES_NOT_RUN_ON = (
    "compute_90 sm_89", "compute_90a sm_100", "compute_100f sm_120", "sm_80 compute_80", "compute_80 compute_75",
)  # fmt: skip


def test_which_architectures_run_which_code():
    assert all(runs_on(*pair.split()) for pair in RUNS_ON)
    assert not any(runs_on(*pair.split()) for pair in DOES_NOT_RUN_ON)


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


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
def test_nvcc_embeds_ptx_for_a_later_gpu():
    import torch

    source = "__global__ void one(float* x) { *x = 1; } void run(float* x) { one<<<1, 1>>>(x); }"
    x = torch.zeros(1, device="cuda")
    jitload.load_inline("later", cuda_sources=source, functions=["run"], arch=("sm_80", "compute_80")).run(x)
    assert x.item() == 1
