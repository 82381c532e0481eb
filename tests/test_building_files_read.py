"""The files that a compiler read: names in depfiles, and headers that no version in the cache key covers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from jitload.building.files_read import read_depfile, unversioned_headers


def test_a_depfile_is_read_with_its_escapes(tmp_path):
    directory = tmp_path / "a $b #c"
    directory.mkdir()
    (directory / "x y.h").write_text("")
    source = directory / "s.cc"
    source.write_text('#include "x y.h"\n')
    subprocess.run(["c++", "-MD", "-MF", "d", "-c", str(source), "-o", "s.o"], cwd=tmp_path, check=True)
    assert read_depfile((tmp_path / "d").read_text())[-1] == directory / "x y.h"


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
    ("/versioned/tvm/ffi/c_api.h", False),
    ("relative.h", False),
]


@pytest.mark.parametrize(("path", "is_recorded"), HEADERS)
def test_headers_of_other_packages_are_recorded(path, is_recorded):
    assert list(unversioned_headers([Path(path)], [Path("/versioned")])) == [Path(path)] * is_recorded
