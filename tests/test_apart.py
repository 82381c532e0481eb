"""The code of tvm-ffi's errors in an object of its own: made beside a first build, kept, left where it is no use."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

import jitload
from jitload.cxx import apart, spare
from jitload.cxx.spare import has_spare_core, only_one
from jitload.elf.file import read_dynamic_symbols
from jitload.errors import CompileError
from jitload.settings import read_settings
from jitload.toolchain.host import find_compiler

CHECKED = 'int f(int n) {\n  if (n < 0) TVM_FFI_THROW(ValueError) << n << " is below 0";\n  return n;\n}'


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return a cache of this test's own, on a machine with a processor to spare, where nothing is precompiled."""
    return prepare(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return such a cache with one library and the object that its build made."""
    with pytest.MonkeyPatch.context() as patch:
        cache = prepare(patch, tmp_path_factory.mktemp("made"))
        build(CHECKED)
    return cache


@pytest.fixture
def second_cache(made, cache):
    """Return a copy of it."""
    return Path(shutil.copytree(made, cache))


def prepare(patch, directory):
    patch.setenv("JITLOAD_CACHE_DIR", str(directory / "cache"))
    patch.setenv("JITLOAD_PRECOMPILE", "1")
    patch.setattr("tempfile.tempdir", str(directory))  # where one process of a machine is told from the next
    patch.setattr("jitload.cxx.host.start_precompiling", lambda *_: None)
    patch.setattr(apart, "has_spare_core", lambda _at_work: True)
    patch.setattr(apart, "can_afford", lambda _cache_dir: True)
    return directory / "cache"


def build(text="int f(int n) { return n; }", **options):
    path = Path(jitload.build_inline("m", cpp_sources=text, functions="f", **options))
    for thread in threading.enumerate():
        if thread.name == "jitload-precompile":
            thread.join()
    return path


def commands(path):
    return (path.parent / "build.ninja").read_text()


def steps_of(path):
    return [line.split()[-1] for line in commands(path).splitlines() if line.startswith("  description")]


def test_the_first_build_makes_it_and_later_ones_link_it(second_cache):
    first = build(CHECKED)
    assert steps_of(first) == ["cpp_sources.cc.o", "errors.o", "m.so"]
    (kept,) = second_cache.glob("errors-*/*/errors.o")
    assert kept.read_bytes() == (first.parent / "errors.o").read_bytes()
    second = build("int f(int n) { return n + 1; }")
    assert steps_of(second) == ["cpp_sources.cc.o", "m.so"]
    assert " errors.o " in commands(second)
    assert (second.parent / "errors.o").read_bytes() == kept.read_bytes()
    for path in (first, second):
        assert not [name for name in read_dynamic_symbols(path.read_bytes()).undefined if "3tvm3ffi" in name]
        assert "errors.o" not in str(jitload.load_module(path))
    assert jitload.load_module(second).f(1) == 2


def test_errors_are_those_of_a_library_made_in_one(second_cache, monkeypatch, tmp_path):
    def complaints(path):
        module = jitload.load_module(path)
        for call in (lambda: module.f("x"), lambda: module.f(-1)):
            with pytest.raises((TypeError, ValueError)) as caught:
                call()
            yield type(caught.value), str(caught.value)

    apart_ones = list(complaints(build(CHECKED)))
    monkeypatch.setenv("JITLOAD_PRECOMPILE", "0")
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "another"))
    in_one = build(CHECKED)
    assert steps_of(in_one) == ["cpp_sources.cc.o", "m.so"]
    assert apart_ones == list(complaints(in_one))
    assert apart_ones[1] == (ValueError, "-1 is below 0")


def test_an_object_of_it_is_complete(cache, tmp_path):
    whole = build(CHECKED, output=tmp_path / "m.o")
    subprocess.run([*find_compiler(read_settings()).command, "-shared", whole, "-o", tmp_path / "own.so"], check=True)
    assert jitload.load_module(tmp_path / "own.so").f(5) == 5


def test_source_files_do_without(cache, tmp_path):
    """Their directories may have headers of the same names."""
    head = "#include <tvm/ffi/container/tensor.h>\n#include <tvm/ffi/function.h>\n"
    text = "int f(int n) { return n + 2; }\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(f, f);\n"
    (tmp_path / "f.cc").write_text(head + text)
    path = Path(jitload.build("m", sources=[tmp_path / "f.cc"]))
    assert "jitload_apart.h" not in commands(path)
    assert jitload.load_module(path).f(1) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"extra_include_paths": ["."]},  # it may have headers of the same names
        {"extra_cflags": ["-DMINE=1"]},  # which nobody compares with what the object was made with
        {"extra_cflags": ["-include", "vector"]},
    ],
)
def test_what_could_change_it_does_without(cache, options):
    path = build(**options)
    assert "jitload_apart.h" not in commands(path)
    assert not list(cache.glob("errors-*"))


def test_other_options_take_another(second_cache):
    assert "errors.o" in steps_of(build(CHECKED))
    assert "errors.o" in steps_of(build(extra_cflags=["-O1"]))
    assert len(list(second_cache.glob("errors-*"))) == 2


def test_none_where_no_processor_is_idle_or_another_build_makes_one(cache, monkeypatch):
    with only_one() as is_ours:
        assert is_ours
        assert "jitload_apart.h" not in commands(build("int f(int n) { return n + 1; }"))
    monkeypatch.setattr(apart, "has_spare_core", lambda _at_work: False)
    assert "jitload_apart.h" not in commands(build("int f(int n) { return n + 2; }"))
    monkeypatch.setattr(apart, "has_spare_core", lambda _at_work: True)
    monkeypatch.setattr(apart, "can_afford", lambda _cache_dir: False)
    assert "jitload_apart.h" not in commands(build("int f(int n) { return n + 3; }"))


def test_a_mistake_is_the_users(cache, monkeypatch):
    def log():
        with pytest.raises(CompileError) as caught:
            build("int f() { return x; }")
        return caught.value.log

    beside = log()
    monkeypatch.setenv("JITLOAD_PRECOMPILE", "0")
    assert beside == log()
    assert "was not declared" in beside
    assert not list((cache / ".tools").glob("*.refused"))


def test_a_compiler_that_fails_on_it_is_not_asked_again(cache, monkeypatch):
    monkeypatch.setattr(apart, "errors_text", lambda _names: "#error not with me\n")
    path = build()
    assert steps_of(path) == ["cpp_sources.cc.o", "m.so"]
    assert jitload.load_module(path).f(3) == 3
    (refused,) = (cache / ".tools").glob("*.refused")
    assert "not with me" in refused.read_text()
    assert "jitload_apart.h" not in commands(build("int f(int n) { return n + 1; }"))


def test_an_object_that_lacks_something_is_left(cache, monkeypatch):
    monkeypatch.setattr(apart, "errors_text", lambda _names: "int nothing;\n")
    path = build(CHECKED)
    assert steps_of(path) == ["cpp_sources.cc.o", "m.so"]
    assert jitload.load_module(path).f(3) == 3
    (refused,) = (cache / ".tools").glob("*.refused")
    assert "3tvm3ffi" in refused.read_text()
    assert not list(cache.glob("errors-*"))


def test_a_damaged_one_is_made_again(second_cache):
    (kept,) = second_cache.glob("errors-*/*/errors.o")
    kept.write_bytes(b"\0" * kept.stat().st_size)
    path = build("int f(int n) { return n + 1; }")
    assert "errors.o" in steps_of(path)
    assert jitload.load_module(path).f(1) == 2


# ---- what the machine has to spare -----------------------------------------------------------------------------


def test_a_processor_is_idle_where_nothing_else_runs(monkeypatch):
    monkeypatch.setattr(spare, "core_count", lambda: 2)
    monkeypatch.setattr(spare.os, "cpu_count", lambda: 2)
    said = {"text": "0.20 0.17 0.61 1/345 16965\n"}
    monkeypatch.setattr(spare.Path, "read_text", lambda _self: said["text"])
    assert has_spare_core(1)
    assert not has_spare_core(2)
    said["text"] = "0.20 0.17 0.61 2/345 16965\n"
    assert not has_spare_core(1)
    said["text"] = "what is this"
    assert has_spare_core(1)


def test_one_at_a_time(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with only_one() as first, only_one() as second:
        assert (first, second) == (True, False)
        started = time.monotonic()
        with only_one(0.2) as third:
            assert not third
        assert time.monotonic() - started >= 0.2
    with only_one() as again:
        assert again
