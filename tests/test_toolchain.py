"""Which nvcc is found, what its parts are, and where CUDA's headers are, on made-up installations."""

import os
import shutil
from pathlib import Path

import pytest
from builds import ADD, ARCH

import jitload
from jitload.errors import LaunchSpecError, ToolchainError
from jitload.settings import read_settings
from jitload.toolchain import cuda
from jitload.toolchain import nvcc as nvcc_module
from jitload.toolchain.nvcc import find_nvcc

BOTH = ADD + "void f() { add<<<1, 1>>>(0, 0, 0); }"


@pytest.fixture
def no_nvcc(monkeypatch, tmp_path):
    """Hide every nvcc of this machine."""
    for name in ("CUDA_HOME", "CUDA_PATH", "JITLOAD_NVCC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(nvcc_module, "DEFAULT_HOME", str(tmp_path / "default"))
    monkeypatch.setattr(nvcc_module, "package_dirs", lambda name: [])


def test_without_nvcc_the_error_names_the_extra_and_the_alternatives(no_nvcc, empty_cache):
    with pytest.raises(ToolchainError) as caught:
        jitload.build_inline("m", cuda_sources=BOTH, functions=["f"], arch=ARCH)
    message = str(caught.value)
    assert message.startswith("module 'm' launches kernels from C++, which needs nvcc, and nvcc was not found. Install")
    for words in ("pip install 'jitload[cu13,nvcc]'", "functions={'f': Launch(grid=…, block=…)}", "with embed_cubin=."):
        assert words in message
    with pytest.raises(LaunchSpecError, match=r"is missing[^$]*The host functions are: f. The kernels are: add"):
        jitload.build_inline("m", cuda_sources=BOTH, arch=ARCH)


def test_a_missing_nvcc_that_was_named_is_an_error(monkeypatch, empty_cache, tmp_path):
    monkeypatch.setenv("JITLOAD_NVCC", str(tmp_path / "none"))
    with pytest.raises(ToolchainError, match=r"JITLOAD_NVCC=.*none: no nvcc there. Name its file, or the toolkit's"):
        jitload.build_inline("m", cuda_sources=BOTH, functions=["f"], arch=ARCH)


def fake_toolkit(home: Path, release: str) -> Path:
    """Write an nvcc that is a script in front of its toolkit, as distributions have it."""
    (home / "bin").mkdir(parents=True)
    nvcc = home / "bin" / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho '#$ TOP={home}/bin/..'\necho 'release 13.0, V{release}'\n")
    nvcc.chmod(0o755)
    return nvcc


PARTS = {
    "nvidia_cuda_nvcc-13.5.37": "bin/nvcc",
    "nvidia_nvvm-13.5.37": "nvvm/bin/cicc",
    "nvidia_cuda_crt-13.5.99": "include/crt/host_config.h",
    "nvidia_cuda_runtime-13.5.1": "include/cuda_runtime.h",
}


@pytest.fixture
def wheels(monkeypatch, tmp_path):
    """NVIDIA's wheels with an nvcc, in place of those of this machine."""
    site = tmp_path / "site"
    for name, file in PARTS.items():
        path = site / "nvidia" / "cu13" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\necho 'release 13.5, V13.5.37'\n")
        path.chmod(0o755)
        (site / f"{name}.dist-info").mkdir()
    monkeypatch.setattr(nvcc_module, "package_dirs", lambda name: [site / name])
    nvcc_module._check_parts.cache_clear()
    return site


def test_the_order_is_settings_then_wheels_then_the_path_then_the_default_place(
    monkeypatch, empty_cache, tmp_path, no_nvcc, wheels
):
    def found() -> Path:
        return find_nvcc(read_settings(), empty_cache, name="m").path

    homes = [tmp_path / name for name in ("named", "home", "path", "default")]
    named, at_home, on_path, default = (fake_toolkit(home, "13.0.1") for home in homes)
    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))  # there is no nvcc in it
    assert found() == wheels / "nvidia" / "cu13" / "bin" / "nvcc"
    monkeypatch.setattr(nvcc_module, "package_dirs", lambda name: [])
    assert found() == on_path
    monkeypatch.setenv("PATH", "/nowhere")
    assert found() == default
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert found() == at_home
    monkeypatch.setenv("JITLOAD_NVCC", str(tmp_path / "named"))
    assert found() == named
    monkeypatch.setenv("JITLOAD_NVCC", str(on_path))
    assert found() == on_path


def test_the_nvcc_of_wheels_is_described_by_all_its_wheels(empty_cache, no_nvcc, wheels):
    home = wheels / "nvidia" / "cu13"
    (home / "bin" / "nvcc").chmod(0o644)  # some installers do
    nvcc = find_nvcc(read_settings(), empty_cache, name="m")
    assert nvcc.version == (13, 5, 37)
    assert nvcc.identity == f"nvcc 13.5.37 {' '.join(sorted(PARTS))}"
    assert nvcc.include_dirs == (home / "include",)
    assert os.access(nvcc.path, os.X_OK)


@pytest.mark.parametrize("part", list(PARTS)[1:])
def test_an_incomplete_nvcc_of_wheels_names_the_wheel_that_is_missing(part, empty_cache, no_nvcc, wheels):
    (wheels / "nvidia" / "cu13" / PARTS[part]).unlink()
    with pytest.raises(ToolchainError) as caught:
        find_nvcc(read_settings(), empty_cache, name="m")
    wheel = part.partition("-")[0].replace("_", "-")
    assert str(caught.value).endswith(f"needs the wheel {wheel}, which was not found: pip install 'jitload[cu13,nvcc]'")


def test_wheels_of_two_releases_of_cuda_are_not_mixed(empty_cache, no_nvcc, wheels):
    (wheels / "nvidia_cuda_crt-13.5.99.dist-info").rename(wheels / "nvidia_cuda_crt-13.0.99.dist-info")
    with pytest.raises(ToolchainError) as caught:
        find_nvcc(read_settings(), empty_cache, name="m")
    assert "nvidia-cuda-crt 13.0.99" in str(caught.value)
    assert str(caught.value).endswith("different releases of CUDA: pip install 'nvidia-cuda-crt==13.5.*'")


def test_the_identity_of_an_nvcc_is_its_version_and_the_flags_in_its_variables(monkeypatch, empty_cache, tmp_path):
    monkeypatch.setenv("JITLOAD_NVCC", str(fake_toolkit(tmp_path / "a", "13.0.1")))
    monkeypatch.delenv("NVCC_PREPEND_FLAGS", raising=False)
    monkeypatch.delenv("NVCC_APPEND_FLAGS", raising=False)
    assert find_nvcc(read_settings(), empty_cache, name="m").identity == "nvcc 13.0.1"
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-G")
    assert find_nvcc(read_settings(), empty_cache, name="m").identity == "nvcc 13.0.1 -G"
    shutil.rmtree(tmp_path / "a")
    fake_toolkit(tmp_path / "a", "13.0.25")  # an upgrade in place
    assert find_nvcc(read_settings(), empty_cache, name="m").version == (13, 0, 25)


HEADERS = ("crt/host_config.h", "cccl/cuda/std/type_traits", "cccl/nv/target")


def make_files(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")


def make_toolkit(home: Path, version: int, *parts: str) -> Path:
    make_files(home / "include", *parts)
    (home / "include" / "cuda_runtime_api.h").write_text(f"/* text */\n#define CUDART_VERSION  {version}\n")
    return home


@pytest.fixture
def torchs_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The torchs_wheels that torch brings: NVRTC 13.0 and the runtime's headers, without crt/ and without CCCL."""
    root = tmp_path / "site" / "nvidia"
    make_files(root, "cu13/lib/libnvrtc.so.13", "cu13/include/cuda_fp16.h", "cu13/include/cuda_runtime.h")
    make_files(root.parent, "nvidia_cuda_nvrtc-13.0.88.dist-info/METADATA")
    monkeypatch.setattr(cuda, "package_dirs", lambda _: [root])
    monkeypatch.setattr(cuda, "DEFAULT_HOME", str(tmp_path / "cuda"))
    monkeypatch.syspath_prepend(str(tmp_path))  # what was found before is cached by sys.path
    for name in ("CUDA_HOME", "CUDA_PATH", "JITLOAD_NVRTC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return root


def test_missing_headers_come_from_the_installers_default_place(torchs_wheels, tmp_path):
    home = make_toolkit(tmp_path / "cuda", 13000, *HEADERS)
    toolchain = cuda.find_cuda_toolchain(read_settings())
    assert toolchain.include_dirs == (torchs_wheels / "cu13/include", home / "include", home / "include/cccl")
    assert "toolkit headers" in toolchain.identity


@pytest.mark.parametrize("place", ["CUDA_HOME", "PATH", "versioned default"])
def test_missing_headers_come_from_a_toolkit_that_is_named_or_has_a_version_in_its_name(
    torchs_wheels, tmp_path, monkeypatch, place
):
    make_toolkit(tmp_path / "cuda", 12090, *HEADERS)  # another release
    home = make_toolkit(tmp_path / ("elsewhere" if place.isupper() else "cuda-13.0"), 13000, *HEADERS)
    make_files(home, "bin/nvcc")
    (home / "bin/nvcc").chmod(0o755)
    if place.isupper():
        monkeypatch.setenv(place, str(home / "bin" if place == "PATH" else home))
    assert home / "include/cccl" in cuda.find_cuda_toolchain(read_settings()).include_dirs


def test_headers_of_another_release_are_not_mixed_in(torchs_wheels, tmp_path):
    make_toolkit(tmp_path / "cuda", 13010, *HEADERS)
    toolchain = cuda.find_cuda_toolchain(read_settings())
    assert toolchain.include_dirs == (torchs_wheels / "cu13/include",)
    assert "toolkit" not in toolchain.identity


def test_complete_wheels_need_no_toolkit(torchs_wheels, tmp_path):
    make_files(torchs_wheels / "cu13/include", *HEADERS)
    make_toolkit(tmp_path / "cuda", 13000, *HEADERS)
    include_dirs = cuda.find_cuda_toolchain(read_settings()).include_dirs
    assert include_dirs == (torchs_wheels / "cu13/include", torchs_wheels / "cu13/include/cccl")
