"""Precompiled headers: which one is used, that a bad one does no harm, and how they are made."""

import os
import shutil
import subprocess
import time
import traceback
from pathlib import Path

import pytest
from builds import ARCH, EXPORT
from support.nvcc import FILE, needs_nvcc

import jitload
from jitload.cache.store import claim_entry
from jitload.host_cpp import library, precompiled, steps
from jitload.host_cpp.precompiled import (
    PrecompiledHeader,
    failure_path,
    find_precompiled,
    independent_includes,
    job_command,
    keyed_flags,
    make_header,
)
from jitload.settings import read_settings
from jitload.toolchain.host import find_compiler

LAUNCHER = "tvm/ffi/extra/cuda/cubin_launcher.h"
TIMEOUT_S = 120.0
COMPILE = library._compile


LIGHT = "tvm/ffi/c_api.h"


def precompile_in(patch, directory, cache_dir):
    """Precompile with a cache and a lock of its own, and one small header instead of all that text gets."""
    patch.setenv("JITLOAD_CACHE_DIR", str(cache_dir))
    patch.setenv("JITLOAD_PRECOMPILE", "1")
    patch.setenv("TMPDIR", str(directory))
    patch.setattr(library, "_compile", COMPILE)  # without the headers of the test run
    patch.setattr(precompiled, "PRELUDE", (LIGHT,))
    patch.setattr(steps, "_PRELUDE", f"#include <{LIGHT}>\n")


@pytest.fixture
def settings(tmp_path, monkeypatch):
    precompile_in(monkeypatch, tmp_path, tmp_path / "cache")
    return read_settings()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a cache with the precompiled header for inline text without options, made after a first build."""
    cache_dir = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        precompile_in(patch, cache_dir, cache_dir)
        assert "prelude.h" not in commands(answer(1))
        wait_for(lambda: list(cache_dir.glob("precompiled-*/*/manifest.json")))
    return cache_dir


@pytest.fixture
def cache(made, settings, tmp_path, monkeypatch):
    """Return a copy of that cache, and do not start to precompile further headers."""
    monkeypatch.setattr(precompiled, "start_precompiling", lambda *_: None)
    return Path(shutil.copytree(made, tmp_path / "cache", copy_function=os.link))


def answer(number, **options):
    text = f'#define VALUE {number}\nextern "C" {{{EXPORT}}}'
    return Path(jitload.build_inline("m", cpp_sources=text, **options))


def commands(library):
    return (library.parent / "build.ninja").read_text()


class CompilerStarted(Exception):  # noqa: N818  it stops a build
    """Raised where the compiler would start, with what it would be given."""


def is_used(number, **options):
    """Return whether a build would use a precompiled header, without running the compiler."""
    return would_use_header(lambda: answer(number, **options))


def would_use_header(build):
    """Return whether a build, the call of a function, would use a precompiled header, without running the compiler."""

    def stop(build):
        raise CompilerStarted(build.precompiled)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(CompilerStarted) as caught:
        patch.setattr(library, "_compile_and_try_link", stop)
        build()
    (headers,) = caught.value.args
    return bool(headers)


def wait_for(condition):
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)


OPENINGS = [
    ("// a\n/* b\n c */\n#include <vector>\n  # include <cuda.h> // d\nint f;\n#include <map>\n", ["vector", "cuda.h"]),
    (f"#include <{LAUNCHER}>", [LAUNCHER]),
    (f'#include "vector"\n#include <{LAUNCHER}>\n', []),
    (f"#define A 1\n#include <{LAUNCHER}>\n", []),
    (f"#include <mine.h>\n#include <{LAUNCHER}>\n", []),
    (f"// a \\\n#include <map>\n#include <{LAUNCHER}>\n", [LAUNCHER]),
    (f"#if 0\n#endif\n#include <{LAUNCHER}>\n", []),
    (f"#include <vector> \\\n\n#include <{LAUNCHER}>\n", []),
]


@pytest.mark.parametrize(("text", "names"), OPENINGS)
def test_independent_includes_are_the_first_of_a_text(text, names):
    assert independent_includes(text) == names


FLAGS = [
    ([], ()),
    (["-O3", "-DN=4", "-std=c++20", "-DNDEBUG"], ("-O3", "-std=c++20", "-DNDEBUG")),
    (["-march=native"], None),
    (["-include", "a.h"], None),
    (["-D", "N=4"], None),
    (["@file"], None),
]


@pytest.mark.parametrize(("flags", "keyed"), FLAGS)
def test_options_that_depend_on_files_or_the_machine_rule_it_out(flags, keyed):
    assert keyed_flags(flags) == keyed


def test_a_later_build_includes_it(cache):
    library = answer(42)
    assert f"-include {cache}/precompiled-" in commands(library)
    assert jitload.load_module(library).get() == 42
    assert is_used(43, extra_cflags=["-DMINE=1"])
    assert "prelude" not in (library.parent / "manifest.json").read_text()


def test_exceptions_are_the_same_with_it(tmp_path):
    """Those of argument checks and of `throw`, also in a library linked from an object.."""
    text = 'int f(int n) {\n  if (n < 0) TVM_FFI_THROW(ValueError) << n << " is below 0";\n  return n;\n}'
    for attempt in range(20):  # another process of the test run may still be making the header
        path = Path(jitload.build_inline("m", cpp_sources=f"// {attempt}\n{text}", functions="f"))
        if "prelude.h" in commands(path):
            break
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


def test_gcc_ignores_it_if_macros_differ(cache):
    """The option is not in the key although it changes the headers."""
    path = answer("INT8_MAX == 127 ? sizeof(int64_t) : 0", extra_cflags=["-DUINT8_MAX=77"])
    assert "prelude.h" in commands(path)
    assert jitload.load_module(path).get() == 8


def test_directories_options_and_variables_that_change_headers_rule_it_out(cache, monkeypatch, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.h").write_text("")
    assert is_used(5, extra_include_paths=[tmp_path / "mine"])
    (tmp_path / "mine" / "tvm").mkdir()
    assert not is_used(5, extra_include_paths=[tmp_path / "mine"])
    assert not is_used(5, extra_cflags=["-O3"])
    for name, value in (("CPATH", str(tmp_path)), ("JITLOAD_PRECOMPILE", "0")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert not is_used(5)
    assert is_used(5)


def nvcc_build(directory, *macros):
    """Build a text with nvcc. Return the number of uses of a header, and the object file without names of files."""
    path = Path(jitload.build_inline("m", cuda_sources=FILE, arch=ARCH, extra_cuda_cflags=["-DVALUE=7", *macros]))
    assert jitload.load_module(path).get() == 7
    (compiled,) = path.parent.glob("*.cu.o")
    stripped = directory / "stripped.o"
    subprocess.run(["strip", "--strip-debug", compiled, "-o", stripped], check=True)
    return len([*path.parent.glob("*.rest.cpp")]), stripped.read_bytes()


@needs_nvcc
def test_sources_for_nvcc_share_a_header(settings, tmp_path, monkeypatch):
    """The object file is the same with the header and without it."""
    specs = []
    monkeypatch.setattr(precompiled, "start_precompiling", lambda spec, *_: specs.append(spec))
    monkeypatch.setattr(library, "_remove_temporaries", lambda build: None)
    without, object_without = nvcc_build(tmp_path)
    assert specs[0].includes == (LIGHT,)
    make(specs[0], tmp_path / "cache")
    with_header, object_with_header = nvcc_build(tmp_path, "-DMINE=1")
    assert {spec.key for spec in specs} == {specs[0].key}
    (tmp_path / "mine" / "crt").mkdir(parents=True)  # CUDA has headers in such a directory
    macros = (["-DMINE=3"], ["-isystem", str(tmp_path / "mine")])
    assert [would_use_header(lambda m=m: nvcc_build(tmp_path, *m)) for m in macros] == [True, False]
    assert (without, with_header) == (0, 1)
    assert object_without == object_with_header
    assert not list((tmp_path / "cache" / ".tools").glob("*.refused"))


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "unlisted"])
def test_a_damaged_header_is_not_used_and_made_again(cache, damage, monkeypatch):
    started = []
    monkeypatch.setattr(precompiled, "start_precompiling", lambda spec, *_: started.append(spec.key.name))
    (file,) = cache.glob("precompiled-*/*/prelude.h.gch")
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4096] = bytes(byte ^ 0x55 for byte in data[middle : middle + 4096])
    file.unlink()
    if damage == "unlisted":
        manifest = file.with_name("manifest.json")
        text = manifest.read_text().replace(file.name, "other.h")
        manifest.unlink()  # a link
        manifest.write_text(text)
    elif damage != "gone":
        file.write_bytes({"flipped": data, "cut": data[:middle]}[damage])
    if damage == "flipped":
        assert jitload.load_module(answer(20)).get() == 20
        wait_for(lambda: started == ["precompiled"])
    else:
        assert not is_used(20)
    assert not list(cache.glob("precompiled-*/*"))


def test_a_header_that_does_not_work_is_not_tried_again(cache, monkeypatch):
    """The compiler fails with an intact header: this build and later ones do without it."""

    def broken(*arguments):
        header = find_precompiled(*arguments)
        return header and header._replace(entry=header.entry._replace(product=Path("/none/prelude.h")))

    assert is_used(31)
    with monkeypatch.context() as patch:
        patch.setattr(precompiled, "find_precompiled", broken)
        patch.setattr(PrecompiledHeader, "is_intact", lambda self: True)
        assert jitload.load_module(answer(30)).get() == 30
    (refused,) = (cache / ".tools").glob("*.refused")
    assert "/none/prelude.h" in refused.read_text()
    assert not is_used(31)


def simple_header(tmp_path, text="inline int number() { return 1; }\n"):
    """Return a precompiled header of one small header."""
    (tmp_path / "include").mkdir(exist_ok=True)
    (tmp_path / "include" / "small.h").write_text(text)
    key = precompiled.CacheKey.of("precompiled", (("kind", "precompiled"),))
    command = (*find_compiler(read_settings()).command, "-O2", f"-I{tmp_path / 'include'}")
    return precompiled.HeaderSpec(includes=("small.h",), command=command, key=key)


def make(spec, cache_dir):
    with claim_entry(cache_dir, spec.key, read_settings()) as work:
        assert make_header(spec, work) == ""


def test_a_changed_header_is_precompiled_again(settings, tmp_path):
    cache_dir = tmp_path / "cache"
    spec = simple_header(tmp_path)
    make(spec, cache_dir)
    header = find_precompiled(spec, cache_dir, settings)
    assert header is not None
    assert header.is_intact()
    assert "small.h" in header.names
    simple_header(tmp_path, "inline int number() { return 2; }\n")
    assert find_precompiled(spec, cache_dir, settings) is None
    make(spec, cache_dir)
    remade = find_precompiled(spec, cache_dir, settings)
    assert remade is not None
    assert remade.path != header.path


def test_a_compiler_that_fails_is_not_tried_again(settings, tmp_path):
    spec = simple_header(tmp_path, "#error no\n")
    run_job(spec, tmp_path / "cache").communicate(timeout=TIMEOUT_S)
    assert "#error no" in failure_path(spec.key, tmp_path / "cache").read_text()
    assert not list((tmp_path / "cache" / ".work").iterdir())
    assert find_precompiled(spec, tmp_path / "cache", settings) is None


def run_job(spec, cache_dir):
    cache_dir.mkdir(exist_ok=True)
    return subprocess.Popen(job_command(spec, cache_dir), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_several_processes_make_one(settings, tmp_path):
    spec, cache_dir = simple_header(tmp_path), tmp_path / "cache"
    jobs = [run_job(spec, cache_dir) for _ in range(3)]
    assert [(job.communicate(timeout=TIMEOUT_S)[0], job.returncode) for job in jobs] == [(b"", 0)] * 3
    assert len(list(cache_dir.glob("precompiled-*/*/prelude.h.gch"))) == 1
    assert not list((cache_dir / ".work").iterdir())
