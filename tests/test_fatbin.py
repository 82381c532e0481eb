"""Fatbins, and what else the tool for object files takes."""

import shutil
import subprocess

import pytest
from support.program import CUBIN
from test_embed_cubin import compile_c, embedded, link, options, tool

from jitload.cuda.fatbin import check_is_whole, make_fatbin
from jitload.errors import LoadError


def test_bytes_that_nobody_knows_are_embedded_with_a_warning(tmp_path):
    """As upstream's tool does: a program may unpack them before the driver sees them."""
    data, bad = b"DUMMY_CUBIN_DATA_FOR_TESTING" * 10, tmp_path / "k.bin"
    bad.write_bytes(data)
    source = compile_c(tmp_path, "k")
    done = tool(*options(bad, source, source), "--verbose")
    assert done.returncode == 0
    assert done.stderr == (
        f"{bad} is neither a cubin nor a fatbin: it begins with b'DUMMY_CU'; it is embedded as it is\n"
    )
    assert done.stdout == f"{source}: reader.o with {bad} (280 bytes) as k\n"
    assert embedded(link(tmp_path, source), "k")[1] == data + b"\0"


@pytest.mark.parametrize("cut", [10, 20, 400, -1])
def test_a_fatbin_that_is_cut_off_is_refused(cut):
    whole = make_fatbin([("sm_90", CUBIN.read_bytes())])
    check_is_whole(whole, "k")
    with pytest.raises(LoadError, match=r"^k: this fatbin is damaged or cut off \("):
        check_is_whole(whole[:cut], "k")


def test_fatbins_are_written_as_nvidias_own_tool_writes_them(tmp_path):
    if not shutil.which("nvcc") or not shutil.which("fatbinary"):
        pytest.skip("needs nvcc")
    (tmp_path / "k.cu").write_text('extern "C" __global__ void add(float* x) { *x += 1; }\n')
    images, cubins = [], []
    for arch in ("80", "90a"):
        subprocess.run(["nvcc", "-cubin", f"-arch=sm_{arch}", "k.cu", "-o", arch], cwd=tmp_path, check=True)
        images.append(f"--image3=kind=elf,sm={arch},file={arch}")
        cubins.append((f"sm_{arch}", (tmp_path / arch).read_bytes()))
    subprocess.run(["fatbinary", "--create=theirs", "--compress=false", *images], cwd=tmp_path, check=True)
    assert make_fatbin(cubins) == (tmp_path / "theirs").read_bytes()
