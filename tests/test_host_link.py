"""The link of C++ written by hand: which linker does it, and what becomes of it where that one does not work."""

from __future__ import annotations

from pathlib import Path

import pytest

import jitload
from jitload.cxx import host, link
from jitload.settings import read_settings
from jitload.toolchain.host import find_compiler

QUICK = [
    ((), True),
    (("-O3", "-DN=4", "-Wall", "-std=c++20"), True),
    (("-flto",), False),
    (("-Wl,--icf=all",), False),
    (("-g",), False),
]


@pytest.mark.parametrize(("flags", "is_quick"), QUICK)
def test_gold_links_where_no_option_may_mean_something_to_a_linker(flags, is_quick, monkeypatch):
    compiler = find_compiler(read_settings())
    monkeypatch.setattr(link.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(link.platform, "machine", lambda: "x86_64")
    assert link.quick_linker(compiler._replace(command=("g++",)), flags) == ("-fuse-ld=gold",) * is_quick
    assert link.quick_linker(compiler._replace(command=("g++", "-m64")), flags) == ()
    monkeypatch.setattr(link.shutil, "which", lambda name: None)
    assert link.quick_linker(compiler, flags) == ()


def test_a_linker_that_does_not_work_is_not_needed(monkeypatch):
    monkeypatch.setattr(host, "quick_linker", lambda *_: ("-Wl,--no-such-option",))
    text = "int add(int a, int b) { return a + b; }"
    library = Path(jitload.build_inline("quick", cpp_sources=text, functions="add"))
    assert "--no-such-option" not in (library.parent / "build.ninja").read_text()
    assert jitload.load_module(library).add(2, 3) == 5
