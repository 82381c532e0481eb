"""Headers that a compiler read, and functions that nobody defines."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import jitload
from jitload.building.files_read import read_depfile, unknown_headers
from jitload.errors import LoadError


def test_a_depfile_gives_its_paths_back(tmp_path):
    directory = tmp_path / "a $b #c"
    directory.mkdir()
    (directory / "x y.h").write_text("")
    source = directory / "s.cc"
    source.write_text('#include "x y.h"\n')
    subprocess.run(["c++", "-MD", "-MF", "d", "-c", str(source), "-o", "s.o"], cwd=tmp_path, check=True)
    assert read_depfile((tmp_path / "d").read_text())[-1] == directory / "x y.h"


# ---- what was not there ----------------------------------------------------------------------------------------


def test_a_function_that_nobody_defines_is_named():
    text = "namespace ns { int nobody(int, const char*); }\nint f() { return ns::nobody(1, nullptr); }"
    with pytest.raises(LoadError, match=r"u\.so needs ns::nobody\(int, char const\*\), which nothing that was linked"):
        jitload.load_inline("u", cpp_sources=text, functions="f")
    with pytest.raises(LoadError, match=r"u\.so needs in_c, which .* \(for C, declare it extern \"C\"\)"):
        jitload.load_inline("u", cpp_sources='extern "C" int in_c(); int f() { return in_c(); }', functions="f")


def test_symbols_of_other_libraries_are_found_at_load(tmp_path):
    """Of libc, tvm-ffi, Python itself and a library of the user's."""
    (tmp_path / "own.c").write_text("int own(void) { return 4; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "own.c", "-o", "libown.so"], cwd=tmp_path, check=True)
    text = """\
#include <cmath>
#include <thread>
extern "C" int own(); extern "C" int Py_IsInitialized();
int f(int n) { int r = 0; std::thread([&] { r = own() + Py_IsInitialized() + int(std::sqrt(n)); }).join(); return r; }
"""
    flags = [f"-L{tmp_path}", "-lown", f"-Wl,-rpath,{tmp_path}"]
    assert jitload.load_inline("u", cpp_sources=text, functions="f", extra_ldflags=flags).f(9) == 8


HEADERS = [
    ("/usr/include/stdio.h", False),
    ("/usr/include/x86_64-linux-gnu/bits/types.h", False),
    ("/usr/include/c++/12/vector", False),
    ("/usr/lib/gcc/x86_64-linux-gnu/12/include/stddef.h", False),
    ("/usr/include/linux/types.h", False),
    ("/usr/include/zlib.h", True),
    ("/usr/include/eigen3/Eigen/Core", True),
    ("/usr/include/x86_64-linux-gnu/openblas.h", True),
    ("/usr/local/include/own.h", True),
    ("/known/tvm/ffi/c_api.h", False),
    ("relative.h", False),
]


@pytest.mark.parametrize(("path", "is_recorded"), HEADERS)
def test_headers_of_other_packages_are_recorded(path, is_recorded):
    assert list(unknown_headers([Path(path)], [Path("/known")])) == [Path(path)] * is_recorded
