"""Where CUDA's headers are found, on made-up installations of wheels and toolkits."""

from pathlib import Path

import pytest

from jitload.settings import read_settings
from jitload.toolchain import cuda

PARTS = ("crt/host_config.h", "cccl/cuda/std/type_traits", "cccl/nv/target")


def make_files(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")


def make_toolkit(home: Path, version: int, *parts: str) -> Path:
    make_files(home / "include", *parts)
    (home / "include" / "cuda_runtime_api.h").write_text(f"/* text */\n#define CUDART_VERSION  {version}\n")
    return home


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The wheels that torch brings: NVRTC 13.0 and the runtime's headers, without crt/ and without CCCL."""
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


def test_missing_headers_come_from_the_installers_default_place(wheels, tmp_path):
    home = make_toolkit(tmp_path / "cuda", 13000, *PARTS)
    toolchain = cuda.find_cuda_toolchain(read_settings())
    assert toolchain.include_dirs == (wheels / "cu13/include", home / "include", home / "include/cccl")
    assert "toolkit headers" in toolchain.identity


@pytest.mark.parametrize("place", ["CUDA_HOME", "PATH", "versioned default"])
def test_missing_headers_come_from_a_toolkit_that_is_named_or_has_a_version_in_its_name(
    wheels, tmp_path, monkeypatch, place
):
    make_toolkit(tmp_path / "cuda", 12090, *PARTS)  # another release
    home = make_toolkit(tmp_path / ("elsewhere" if place.isupper() else "cuda-13.0"), 13000, *PARTS)
    make_files(home, "bin/nvcc")
    (home / "bin/nvcc").chmod(0o755)
    if place.isupper():
        monkeypatch.setenv(place, str(home / "bin" if place == "PATH" else home))
    assert home / "include/cccl" in cuda.find_cuda_toolchain(read_settings()).include_dirs


def test_headers_of_another_release_are_not_mixed_in(wheels, tmp_path):
    make_toolkit(tmp_path / "cuda", 13010, *PARTS)
    toolchain = cuda.find_cuda_toolchain(read_settings())
    assert toolchain.include_dirs == (wheels / "cu13/include",)
    assert "toolkit" not in toolchain.identity


def test_complete_wheels_need_no_toolkit(wheels, tmp_path):
    make_files(wheels / "cu13/include", *PARTS)
    make_toolkit(tmp_path / "cuda", 13000, *PARTS)
    include_dirs = cuda.find_cuda_toolchain(read_settings()).include_dirs
    assert include_dirs == (wheels / "cu13/include", wheels / "cu13/include/cccl")
