"""Precompiled headers: when one is used, that it is the right one, and that a bad one does no harm."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import traceback
from pathlib import Path

import pytest

import jitload
from jitload.cxx import host, precompiled
from jitload.cxx.precompiled import (
    PRELUDE,
    Precompiled,
    find_precompiled,
    header_spec,
    independent_includes,
    keyed_flags,
    precompiled_includes,
)
from jitload.errors import CompileError
from jitload.request.request import Unit
from jitload.settings import read_settings
from jitload.toolchain.host import find_compiler, own_include_dir, tvm_ffi_include_dirs

LAUNCHER = "tvm/ffi/extra/cuda/cubin_launcher.h"
PATIENCE = 120.0


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Precompile, in a cache of this test's own, whatever else works on the machine."""
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("JITLOAD_PRECOMPILE", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return read_settings()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a cache with the precompiled header that inline text without options wants, made by a first build."""
    cache_dir = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JITLOAD_CACHE_DIR", str(cache_dir))
        patch.setenv("JITLOAD_PRECOMPILE", "1")
        patch.setenv("TMPDIR", str(cache_dir))
        assert "prelude.h" not in commands(answer(1))
        wait_for(lambda: list(cache_dir.glob("precompiled-*/*/precompiled.json")))
    return cache_dir


@pytest.fixture
def cache(made, settings, tmp_path, monkeypatch):
    """Return a copy of that cache, where no other one is begun behind a test that does not wait for it."""
    monkeypatch.setattr(host, "start_precompiling", lambda *_: None)
    return Path(shutil.copytree(made, tmp_path / "cache", copy_function=os.link))


def answer(number, **options):
    text = f"int answer() {{ return {number}; }}"
    return Path(jitload.build_inline("m", cpp_sources=text, functions="answer", **options))


def commands(library):
    return (library.parent / "build.ninja").read_text()


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.05)


# ---- which one -------------------------------------------------------------------------------------------------

OPENINGS = [
    ("", []),
    (
        "// a\n/* b\n c */\n#include <vector>\n  #  include <cuda.h> // d\nint f();\n#include <map>\n",
        ["vector", "cuda.h"],
    ),
    (f"#include <{LAUNCHER}>", [LAUNCHER]),
    (f"#define A 1\n#include <{LAUNCHER}>\n", []),
    (f"#include <mine.h>\n#include <{LAUNCHER}>\n", []),
    (f'#include "vector"\n#include <{LAUNCHER}>\n', []),
    (f"// a \\\n#include <map>\n#include <{LAUNCHER}>\n", [LAUNCHER]),
    (f"#if 0\n#endif\n#include <{LAUNCHER}>\n", []),
    (f"#include <vector> \\\n\n#include <{LAUNCHER}>\n", []),
    ("int x; #include <vector>\n", []),
    ("#include_next <vector>\n", []),
    ("#pragma GCC system_header\n#include <vector>\n", []),
]


@pytest.mark.parametrize(("text", "names"), OPENINGS)
def test_a_text_opens_with_the_includes_that_nothing_can_change(text, names):
    assert independent_includes(text) == names


def test_only_what_a_unit_reads_first_is_precompiled():
    def includes(text, **options):
        return precompiled_includes(Unit(**{"file": "a.cc", "pieces": (("a", text),), **options}))

    launches = f"#include <{LAUNCHER}>\n"
    assert includes("int f();") == PRELUDE
    assert includes(launches) == (*PRELUDE, LAUNCHER)
    assert includes("#define X\n" + launches) == PRELUDE
    assert includes(launches, is_file=True) == ()
    assert includes(f"#include <{PRELUDE[0]}>\n" + launches, is_file=True) == (*PRELUDE, LAUNCHER)
    assert includes("int f(void);", file="a.c", is_file=True) == ()


FLAGS = [
    ([], ()),
    (["-O3", "-DN=4", "-std=c++20", "-DNDEBUG"], ("-O3", "-std=c++20", "-DNDEBUG")),
    (["-D_GLIBCXX_ASSERTIONS=1", "-ffast-math"], ("-D_GLIBCXX_ASSERTIONS=1", "-ffast-math")),
    (["-march=haswell", "-Wall"], ("-march=haswell", "-Wall")),
    (["-march=native"], None),
    (["-include", "a.h"], None),
    (["-isystem/usr/x"], None),
    (["-D", "N=4"], None),
    (["-fplugin=x"], None),
    (["-Wp,-DA"], None),
    (["-x", "c"], None),
    (["@file"], None),
]


@pytest.mark.parametrize(("flags", "kept"), FLAGS)
def test_options_that_name_files_or_the_machine_take_none(flags, kept):
    assert keyed_flags(flags) == kept


def test_the_key_has_compiler_and_options(settings, tmp_path):
    unit, gcc = Unit(file="a.cc", pieces=(("a", ""),)), find_compiler(settings)

    def key(*flags, around=(), compiler=gcc):
        paths = [f"-I{path}" for path in (own_include_dir().parent, *tvm_ffi_include_dirs())]
        spec = header_spec(unit, flags, compiler=compiler, around=(around, paths), cache_dir=tmp_path)
        return spec and spec.key.digest

    keys = {key(), key("-O3"), key("-O1"), key("-DNDEBUG"), key("-std=c++20"), key(around=("-fPIC",))}
    assert len(keys) == 6
    assert key() == key("-DMINE=3")
    assert key("-march=native") is None
    clang = tmp_path / "clang++"
    clang.write_text("#!/bin/sh\necho 'clang version 18' >&2\n")
    clang.chmod(0o755)
    assert key(compiler=type(gcc)(command=(str(clang),), path=clang)) is None


# ---- used ------------------------------------------------------------------------------------------------------


def test_a_later_build_begins_with_it(cache):
    library = answer(42)
    assert f"-include {cache}/precompiled-" in commands(library)
    assert jitload.load_module(library).answer() == 42
    assert "prelude.h" in commands(answer(43, extra_cflags=["-DMINE=1"]))
    assert "prelude" not in (library.parent / "manifest.json").read_text()


def test_errors_are_as_without_it(cache, tmp_path):
    """An error of the argument checks, and one thrown by hand with its place; the same from an object of one's own."""
    text = 'int f(int n) {\n  if (n < 0) TVM_FFI_THROW(ValueError) << n << " is below 0";\n  return n;\n}'
    path = Path(jitload.build_inline("m", cpp_sources=text, functions="f"))
    assert "prelude.h" in commands(path)
    module = jitload.load_module(path)
    assert module.f(3) == 3
    with pytest.raises(TypeError, match="argument #0"):
        module.f("x")
    with pytest.raises(ValueError, match="-1 is below 0") as caught:
        module.f(-1)
    assert "m.cpp" in "".join(traceback.format_exception(caught.value))
    whole = jitload.build_inline("m", cpp_sources=text, functions="f", output=tmp_path / "m.o")
    subprocess.run([*find_compiler(read_settings()).command, "-shared", whole, "-o", tmp_path / "own.so"], check=True)
    assert jitload.load_module(tmp_path / "own.so").f(5) == 5


def test_g_plus_plus_reads_the_headers_themselves_where_it_does_not_fit(cache):
    """An option that is not in the key and yet means something to the headers."""
    text = "int answer() { return sizeof(std::string); }\n#ifndef max_align_t_is_mine\n#error\n#endif"
    path = jitload.build_inline(
        "m", cpp_sources=text, functions="answer", extra_cflags=["-Dmax_align_t_is_mine", "-DBUFSIZ=77"]
    )
    assert jitload.load_module(path).answer() == 32


def test_other_options_build_without_it(cache):
    assert "prelude.h" not in commands(answer(5, extra_cflags=["-O1"]))
    assert "prelude.h" not in commands(answer(5, extra_cflags=["-O2", "-include", "vector"]))


def test_a_users_directory_may_have_headers_of_the_same_names(cache, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.h").write_text("")
    assert "prelude.h" in commands(answer(6, extra_include_paths=[tmp_path / "mine"]))
    (tmp_path / "mine" / "tvm").mkdir()
    assert "prelude.h" not in commands(answer(7, extra_include_paths=[tmp_path / "mine"]))


def test_variables_of_the_compiler_take_none(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("CPATH", str(tmp_path))
    assert "prelude.h" not in commands(answer(8))


def test_it_can_be_switched_off(cache, monkeypatch):
    monkeypatch.setenv("JITLOAD_PRECOMPILE", "0")
    assert "prelude.h" not in commands(answer(9))


def test_a_mistake_is_told_as_without_it(cache, monkeypatch):
    def error():
        with pytest.raises(CompileError) as caught:
            jitload.build_inline("m", cpp_sources="int f() { return x; }", functions="f")
        return caught.value.log

    with_it = error()
    monkeypatch.setenv("JITLOAD_PRECOMPILE", "0")
    assert with_it == error()
    assert not list((cache / ".tools").glob("*.refused"))


# ---- bad ones --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "other"])
def test_a_damaged_one_is_not_used_and_made_again(cache, damage, monkeypatch):
    if damage == "flipped":
        monkeypatch.setattr(precompiled, "_retry_at", {})
        monkeypatch.setattr(host, "start_precompiling", precompiled.start_precompiling)
    (file,) = cache.glob("precompiled-*/*/prelude.h.gch")
    data = bytearray(file.read_bytes())
    at = len(data) // 2
    data[at : at + 4096] = bytes(byte ^ 0x55 for byte in data[at : at + 4096])
    file.unlink()
    if damage != "gone":
        file.write_bytes({"flipped": data, "cut": data[:at], "other": bytes(len(data))}[damage])
    assert jitload.load_module(answer(20)).answer() == 20
    if damage != "flipped":
        assert not list(cache.glob("precompiled-*/*"))
        return
    wait_for(lambda: list(cache.glob("precompiled-*/*/precompiled.json")))
    assert f"-include {cache}/precompiled-" in commands(answer(21))


def test_one_that_does_not_work_is_not_tried_again(cache, monkeypatch):
    """The compiler fails with it, though it is whole: the build goes on without, now and later."""

    def broken(*arguments):
        found = find_precompiled(*arguments)
        return found and Precompiled(
            entry=found.entry, path=Path("/none/prelude.h"), digest=found.digest, names=found.names
        )

    monkeypatch.setattr(host, "find_precompiled", broken)
    monkeypatch.setattr(Precompiled, "is_intact", lambda self: True)
    assert jitload.load_module(answer(30)).answer() == 30
    (refused,) = (cache / ".tools").glob("*.refused")
    assert "/none/prelude.h" in refused.read_text()
    monkeypatch.undo()
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(cache))
    assert "prelude.h" not in commands(answer(31))
