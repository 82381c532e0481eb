"""What host code does with the kernels of its own text: each feature is built here, and runs where there is a GPU."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from builds import ARCH
from support.nvcc import needs_nvcc, real_nvcc

import jitload
from jitload.elf.file import ElfFile
from jitload.errors import CompileError

pytestmark = needs_nvcc

TEXTS = Path(__file__).parent / "data" / "mixed"
N = 16384
FEATURES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "attributes": lambda x: x.flip(0),
    "cooperative": lambda x: x + 2,
    "driver": lambda x: x,
    "graphs": lambda x: x + 6,
    "lambdas": lambda x: x + 2 * 128,
    "symbols": lambda x: with_sum(x * torch.tensor([1, 2, 3, 4]).repeat(N // 4)),
    "textures": lambda x: x.flip(0),
    "units": lambda x: x + 100 + 1,
}


def with_sum(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the sum of its elements in place of the first."""
    return torch.cat([x.sum().reshape(1), x[1:]])


def build(*names: str) -> Path:
    """Return the library of files; a second call finds it in the cache."""
    sources = [TEXTS / name for name in names]
    return Path(jitload.build("mixed", sources=sources, arch=ARCH, extra_cuda_cflags=["--extended-lambda"]))


def check(library: Path, name: str, expected: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Call a function of a library with `0 1 2 … 6 0 1 …`, and compare what it leaves."""
    x = (torch.arange(N) % 7).float()
    on_gpu = x.cuda()
    assert getattr(jitload.load_module(library), name)(on_gpu.data_ptr(), N) == 0
    torch.testing.assert_close(on_gpu.cpu(), expected(x).float(), rtol=0, atol=0)


def test_every_feature_is_built_from_two_files_and_linked_with_one_runtime_library():
    """The host's code registers the names of the device's, although its two halves are compiled side by side."""
    library = build("features.cu", "other_unit.cu")
    assert sorted(jitload.load_module(library)) == [*FEATURES]
    needed = re.findall(r"NEEDED.*\[(.*)\]", subprocess.check_output(["readelf", "-d", library], text=True))
    assert [name for name in needed if "cuda" in name] == [f"libcudart.so.{real_nvcc().major}"]
    data = library.read_bytes()
    fatbin = next(section for section in ElfFile(data).sections if section.name == ".nv_fatbin")
    kernels = set(re.findall(rb"\.nv\.info\.(\w+)\0", fatbin.data))
    host = data[: fatbin.offset] + data[fatbin.offset + fatbin.size :]
    assert len([kernel for kernel in kernels if b"hidden" in kernel]) == 2
    assert {b"_Z7reversePfi", b"_Z8multiplyPfi"} < kernels
    assert [kernel for kernel in kernels if b"\0" + kernel + b"\0" not in host] == []


def test_the_headers_of_cuda_and_cccl_are_found(tmp_path):
    includes = "".join(f"#include <{name}>\n" for name in ("cub/version.cuh", "thrust/version.h", "cuda/std/cstdint"))
    (tmp_path / "k.cu").write_text(f"{includes}__global__ void k() {{}}\nvoid run() {{ k<<<1, CUB_VERSION > 0>>>(); }}")
    assert list(jitload.load("mixed", sources=tmp_path / "k.cu", functions="run", arch=ARCH)) == ["run"]


def test_exports_of_headers_macros_and_objects_count(monkeypatch, tmp_path):
    class CompilerRanError(Exception):
        pass

    def run(*_: object, **__: object) -> None:
        raise CompilerRanError

    monkeypatch.setattr("jitload.host_cpp.library.run_ninja", run)
    (tmp_path / "exports.h").write_text("#define EXPORT(f) TVM_FFI_DLL_EXPORT_TYPED_FUNC(f, f)\n")
    text = "__global__ void one(float* x) {}\nvoid run_it(float* data) { one<<<1, 1>>>(data); }\n"
    flag = "-DEXPORT(f)=TVM_FFI_DLL_EXPORT_TYPED_FUNC(f,f);"
    for source, options in (
        (f'#include "{tmp_path}/exports.h"\n{text}EXPORT(run_it);\n', {}),
        (f"{text}EXPORT(run_it)\n", {"extra_cuda_cflags": [flag]}),
        (text, {"output": str(tmp_path / "mixed.o")}),
    ):
        with pytest.raises(CompilerRanError):
            jitload.build_inline("mixed", cuda_sources=source, arch=ARCH, **options)


def test_a_typo_suggests_the_nearest_name():
    text = "__global__ void one(float* x) {}\nvoid run_it(float* data) { one<<<1, 1>>>(data); }\n"
    with pytest.raises(CompileError, match=r"has 'run_itt', which no source declares\. Did you mean 'run_it'\?"):
        jitload.build_inline("mixed", cuda_sources=text, functions=["run_itt"], arch=ARCH)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_computes_what_it_should(name):
    check(build("features.cu", "other_unit.cu"), name, FEATURES[name])


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
def test_what_needs_headers_computes_what_it_should():
    check(build("grid_sync.cu"), "grid_sync", lambda x: x.roll(-1))
    check(build("algorithms.cu"), "algorithms", with_sum)
    check(build("thrust.cu"), "sorts", lambda x: x.sort().values)
