"""`python -m jitload.cmake.generate_cubin` and `cubin_source`, run as a build system runs them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from builds import ARCH
from support.fatbins import symbols_in
from support.program import CUBIN
from support.wrappers import run_compiler

from jitload.building.files_read import read_depfile
from jitload.cmake import cubin_source
from jitload.cmake.generate_cubin import main
from jitload.cuda.fatbin import read_fatbin
from jitload.elf.cubin import read_image

SOURCE = """\
#include "n.h"
template <class T> __global__ void scale(T* x) { x[0] *= N; }
extern "C" __global__ void plain(float* x) { x[0] = N; }
"""


def write_source(directory: Path, text: str = SOURCE) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "n.h").write_text("#define N 2\n")
    (directory / "k.cu").write_text(text)
    return directory / "k.cu"


def test_templates_options_and_the_list_of_headers(tmp_path: Path) -> None:
    """In a directory whose name a makefile must not read as it stands."""
    source = write_source(tmp_path / "a $b #c")
    output = source.parent / "out" / "k.cubin"
    given = ["--source", str(source), "--output", str(output), "--arch", ARCH, "--depfile", str(output) + ".d"]
    assert main([*given, "--kernel", "scale<float>", "--kernel", "scale<int>", "--", "-O3", "-DM=1"]) == 0
    symbols = {kernel.symbol for kernel in read_image(output.read_bytes()).kernels}
    assert symbols == {"plain", "_Z5scaleIfEvPT_", "_Z5scaleIiEvPT_"}
    rule = Path(f"{output}.d").read_text()
    assert rule.startswith(str(output).replace("$", "$$").replace("#", "\\#").replace(" ", "\\ ") + ": ")
    read = read_depfile(rule)
    assert read[:2] == [source, source.parent / "n.h"]
    assert "nvrtc" in read[2].name
    make = f"{rule}\nprint:\n\t@echo made"
    done = subprocess.run(["make", "-f", "-", "print"], input=make, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "made\n"), done.stderr


def test_a_fatbin_of_several_architectures(tmp_path: Path, capsys: Any) -> None:
    source, output = write_source(tmp_path), tmp_path / "k.fatbin"
    given = ["--source", str(source), "--output", str(output), "--fatbin", "--depfile", f"{output}.d"]
    assert main([*given, "--arch", "sm_80,sm_90a"]) == 0
    assert symbols_in(output.read_bytes()) == [("sm_80", ["plain"]), ("sm_90a", ["plain"])]
    assert read_depfile(Path(f"{output}.d").read_text())[:2] == [source, source.parent / "n.h"]
    assert main([*given, "--arch", "sm_80,compute_80,compute_90"]) == 0
    entries = read_fatbin(output.read_bytes())
    assert [entry.arch for entry in entries] == ["sm_80", "compute_80", "compute_90"]
    assert [b".target sm_90\n" in entry.code for entry in entries] == [False, False, True]
    assert main([*given, "--arch", "sm_90,sm_100"]) == 2
    assert capsys.readouterr().err == (
        "Error: jitload cannot write a fatbin with code for sm_100, only nvcc can. Use nvcc (in CMake: NVCC), or "
        "write a cubin for sm_100 alone.\n"
    )


REFUSED = [
    (SOURCE, ["--source", "no.cu"], 1, "Error: CUDA source not found: no.cu\n"),
    ("__global__ void k() { y; }", [], 2, 'k.cu(1): error: identifier "y" is undefined'),
    (
        SOURCE,
        ["--arch", "sm_80,sm_90"],
        2,
        "Error: a cubin is for one architecture, not sm_80, sm_90; use --fatbin for several.\n",
    ),
    (SOURCE, ["--arch", "gfx90a"], 2, "Error: --arch gfx90a is not an architecture"),
    ('#include "nope.h"\n', [], 2, "NVRTC has no 'nope.h': pass its directory in --include-dir. CUDA's own"),
    (SOURCE, ["--kernel", "scole<float>"], 2, "no kernel 'scole<float>'"),
    (
        SOURCE,
        ["--", "-arch=sm_80"],
        2,
        f"Error: --arch is {ARCH}, and the compiler options are for sm_80: leave one of them out",
    ),
]


@pytest.mark.parametrize(("text", "options", "code", "words"), REFUSED, ids=[row[3][:40] for row in REFUSED])
def test_refusals(text: str, options: list[str], code: int, words: str, tmp_path: Path, capsys: Any) -> None:  # noqa: PLR0913, PLR0917
    output = tmp_path / "k.cubin"
    given = ["--source", str(write_source(tmp_path, text)), "--output", str(output), "--arch", ARCH]
    assert main([*given, *options]) == code
    assert words in capsys.readouterr().err
    assert not output.exists()


def test_a_word_that_is_neither_an_option_nor_after_the_dashes_is_refused(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["--source", str(write_source(tmp_path)), "--output", f"{tmp_path}/k", "--arch", "sm_80", "sm_90"])
    assert "unrecognized arguments: sm_90" in capsys.readouterr().err


def test_host_code_beside_kernels_is_left_out(tmp_path: Path) -> None:
    source, output = write_source(tmp_path, "__global__ void k() {} void f() { k<<<1, 1>>>(); }"), tmp_path / "k.cubin"
    assert main(["--source", str(source), "--output", str(output), "--arch", ARCH]) == 0
    assert b"_Z1kv" in output.read_bytes()


def test_a_source_that_embeds_finds_cubins_wherever_they_are(tmp_path: Path, capsys: Any) -> None:
    directory = tmp_path / 'a "b" \\c'
    directory.mkdir()
    (directory / "k.cubin").write_bytes(CUBIN.read_bytes())
    given = ["--output", str(tmp_path / "k.cc"), "--cubin", str(directory / "k.cubin"), "--name", "k"]
    assert cubin_source.main(given) == 0
    run_compiler(["-shared", "-fPIC", "k.cc", "-o", "k.so"], tmp_path)
    assert CUBIN.read_bytes() in (tmp_path / "k.so").read_bytes()
    assert cubin_source.main([*given, "--name", "l"]) == 2
    assert capsys.readouterr().err == "Error: there are 1 --cubin and 2 --name: give both for each cubin\n"
