"""Fatbins: what is read of them, and that the tool for object files takes them, and what it takes besides."""

import shutil
import struct
import subprocess

import pytest
from support.fatbins import fatbin_of, symbols_in
from support.program import CUBIN
from test_embed_cubin import compile_c, embedded, link, options, tool

from jitload.cuda.fatbin import FatbinEntry, make_fatbin, read_fatbin, select_cubin, select_ptx
from jitload.errors import LoadError

IMAGE = CUBIN.read_bytes()


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


@pytest.mark.parametrize("cut", [20, 40, 400, -1])
def test_a_fatbin_that_is_cut_off_is_refused(cut, tmp_path):
    whole = fatbin_of((2, 90, IMAGE))
    with pytest.raises(LoadError, match=r"^k: this fatbin is damaged or cut off \(its header states \d+ bytes"):
        read_fatbin(whole[:cut], name="k")
    with pytest.raises(LoadError, match="it has no image"):
        read_fatbin(fatbin_of(), name="k")
    shifted = whole[:24] + struct.pack("<Q", len(whole)) + whole[32:]
    with pytest.raises(LoadError, match="the header of the image at byte"):
        read_fatbin(shifted, name="k")


def test_code_is_chosen_for_an_architecture_with_regard_to_suffixes():
    arch_specific, family = 1 << 20, 1 << 21
    entries = read_fatbin(
        fatbin_of(
            (1, 80, b"80"), (1, 90, b"90a", arch_specific), (1, 100, b"100f", family), (1, 100, b"100a", arch_specific)
        )
    )
    assert [entry.arch for entry in entries] == ["compute_80", "compute_90a", "compute_100f", "compute_100a"]
    chosen = {arch: select_ptx(entries, arch).decode() for arch in ("sm_75", "sm_90", "sm_90a", "sm_100", "sm_100a")}
    assert chosen == {"sm_75": "", "sm_90": "80", "sm_90a": "90a", "sm_100": "100f", "sm_100a": "100a"}
    assert [select_ptx(entries, arch) for arch in ("sm_103a", "sm_120")] == [b"100f", b"80"]
    cubins = [FatbinEntry(arch=arch, code=arch.encode()) for arch in ("sm_100a", "sm_100f", "sm_100")]
    assert [select_cubin(cubins, arch) for arch in ("sm_100a", "sm_103")] == [b"sm_100a", b"sm_100f"]


def test_nvidias_fatbins_are_read_and_written_alike(tmp_path):
    if not shutil.which("nvcc") or not shutil.which("fatbinary"):
        pytest.skip("needs nvcc")
    (tmp_path / "k.cu").write_text('extern "C" __global__ void add(float* x) { *x += 1; }\n')
    codes = [f"-gencode=arch=compute_{code}" for code in ("90a,code=[sm_90a,compute_90a]", "100f,code=compute_100f")]
    subprocess.run(["nvcc", "-fatbin", *codes, "k.cu", "-o", "k.fatbin"], cwd=tmp_path, check=True, capture_output=True)
    fatbin = (tmp_path / "k.fatbin").read_bytes()
    assert sorted(entry.arch for entry in read_fatbin(fatbin)) == ["compute_100f", "compute_90a", "sm_90a"]
    assert all(symbols == ["add"] for _, symbols in symbols_in(fatbin))
    images, cubins = [], []
    for arch in ("80", "90a"):
        subprocess.run(["nvcc", "-cubin", f"-arch=sm_{arch}", "k.cu", "-o", arch], cwd=tmp_path, check=True)
        images.append(f"--image3=kind=elf,sm={arch},file={arch}")
        cubins.append((f"sm_{arch}", (tmp_path / arch).read_bytes()))
    subprocess.run(["fatbinary", "--create=theirs", "--compress=false", *images], cwd=tmp_path, check=True)
    assert make_fatbin(cubins) == (tmp_path / "theirs").read_bytes()
