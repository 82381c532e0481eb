"""The key: everything that compilers read is in it or verified, and nothing else is."""

import os
import shutil
from pathlib import Path

import pytest
from builds import ADD, ARCH, EXPORT, build, kernel, load

import jitload
from jitload.settings import read_settings
from jitload.toolchain.fingerprints import compiler_identity, cpu_identity
from jitload.toolchain.host import find_compiler

VALUE = 'extern "C" __global__ void NAME(float* x) {}\n'


@pytest.fixture
def cache(monkeypatch):
    """The cache of the test run, without the modules of the process."""
    monkeypatch.setattr("jitload.pipeline._modules", {})
    return Path(os.environ["JITLOAD_CACHE_DIR"])


def identity(cache: Path) -> str:
    return compiler_identity(find_compiler(read_settings()), cache)


READ = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX")
READ_TOO = ("SOURCE_DATE_EPOCH", "EDG_BASE", "LD_RUN_PATH", "GNUTARGET", "CCC_OVERRIDE_OPTIONS", "NV_NVVM_VERSION")


@pytest.mark.parametrize("name", [*READ, *READ_TOO])
def test_what_compilers_read_of_the_environment_is_in_the_key(tmp_path, monkeypatch, name):
    # The compiler is not asked: some of these break it.
    monkeypatch.setattr("jitload.toolchain.fingerprints._ask_compiler", lambda *_: "words")
    identities = []
    for value in ("", "/one", "/two"):
        monkeypatch.setenv(name, value)
        identities.append(identity(tmp_path))
    monkeypatch.delenv(name)
    assert len(set(identities)) == 3
    assert identity(tmp_path) == identities[0]


def test_options_in_the_compilers_command_are_in_the_key(cache, tmp_path, monkeypatch):
    identities, script = set(), tmp_path / "script"
    for words in ("g++", "g++ -DVALUE=1", "g++ -DVALUE=2", str(script), str(script)):
        script.write_text(f'#!/bin/sh\nexec g++ -DVALUE={len(identities)} "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("JITLOAD_CXX", words)
        identities.add(identity(cache))
    assert len(identities) == 5


def test_a_compiler_behind_a_script_that_changes_is_asked_again(cache, tmp_path, monkeypatch):
    behind, script = tmp_path / "behind", tmp_path / "script"
    script.write_text(f'#!/bin/sh\nexec {behind} "$@"\n')

    def install(version: str) -> None:
        behind.write_text(f'#!/bin/sh\nprintf "gcc version {version}\\n {behind} -E\\n" >&2\n')
        for path in (behind, script):
            path.chmod(0o755)

    install("1.0")
    monkeypatch.setenv("JITLOAD_CXX", str(script))
    assert "1.0" in identity(cache)
    install("22.0")
    assert "22.0" in identity(cache)
    monkeypatch.setattr("jitload.toolchain.fingerprints._answers", {})  # as a new process
    assert "22.0" in identity(cache)


def test_native_code_counts_the_processor(tmp_path, monkeypatch):
    (tmp_path / "get.c").write_text(f"#define VALUE 1\n{EXPORT}")

    def paths() -> list[str]:
        return [jitload.build("m", sources=tmp_path / "get.c", extra_cflags=flags) for flags in ([], ["-march=native"])]

    assert len(cpu_identity()) == 64
    own_paths = paths()
    monkeypatch.setattr("jitload.sources.common.cpu_identity", lambda: "another")
    paths_elsewhere = paths()
    assert paths_elsewhere[0] == own_paths[0]
    assert paths_elsewhere[1] != own_paths[1]


def places(tmp_path: Path, header: str, **more: str) -> list[Path]:
    directories = []
    for user in ("one", "two"):
        directory = tmp_path / user / "include"
        directory.mkdir(parents=True)
        (directory / "value.h").write_text(header)
        for name, text in more.items():
            (directory.parent / f"{name}.h").write_text(text.replace("USER", user))
        directories.append(directory)
    return directories


def test_two_users_with_the_same_headers_share_an_entry(cache, tmp_path):
    text = '#include "value.h"\n' + VALUE
    first, second = (
        build(text, extra_include_paths=[include_dir]) for include_dir in places(tmp_path, "#define NAME same\n")
    )
    assert first == second
    (tmp_path / "two" / "include" / "value.h").write_text("#define NAME other\n")
    names = [*load(text, extra_include_paths=[tmp_path / "two" / "include"])]
    assert names == ["other"]
    assert build(text, extra_include_paths=[tmp_path / "one" / "include"]) == first


def test_two_users_with_a_source_file_in_another_place_share_an_entry(cache, tmp_path):
    paths = set()
    for user in ("one", "two"):
        (tmp_path / user).mkdir()
        (tmp_path / user / "add.cu").write_text(ADD)
        paths.add(jitload.build("m", sources=tmp_path / user / "add.cu", arch=ARCH))
    assert len(paths) == 1


@pytest.mark.parametrize("reason", ["a header", "the source", "line information"])
def test_code_that_contains_its_own_path_is_not_shared(cache, tmp_path, reason):
    speaks = "#include <assert.h>\n#define CHECK_IT assert(x != nullptr)\n"
    header = speaks if reason == "a header" else "#define CHECK_IT\n"
    body = f'#include "value.h"\n{kernel("k", "CHECK_IT;")}'
    paths = set()
    for include_dir in places(tmp_path, header):
        source = include_dir / "k.cu"
        source.write_text(body.replace("CHECK_IT;", "assert(x != nullptr);") if reason == "the source" else body)
        flags = ["-lineinfo"] if reason == "line information" else []
        paths.add(jitload.build("m", sources=source, arch=ARCH, extra_cuda_cflags=flags))
    assert len(paths) == 2
    assert jitload.build("m", sources=source, arch=ARCH, extra_cuda_cflags=flags) in paths


def test_a_header_beside_the_directory_is_the_users_own(cache, tmp_path):
    text = '#include "value.h"\n' + VALUE
    include_dirs = places(tmp_path, '#include "../beside.h"\n', beside="#define NAME USER\n")
    assert [[*load(text, extra_include_paths=[include_dir])] for include_dir in include_dirs] == [["one"], ["two"]]


def test_directories_within_each_other_are_told_apart(cache, tmp_path):
    """Below `a` and `a/b` a header of `a/b` is found by either; elsewhere the two are different files."""
    text = '#include "value.h"\n' + VALUE
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "value.h").write_text("#define NAME one\n")
    assert [*load(text, extra_include_paths=[tmp_path / "a", inner])] == ["one"]
    moved, last = tmp_path / "other", tmp_path / "last"
    (moved / "b").mkdir(parents=True)
    last.mkdir()
    shutil.copyfile(inner / "value.h", moved / "b" / "value.h")
    (last / "value.h").write_text("#define NAME two\n")
    assert [*load(text, extra_include_paths=[moved, last])] == ["two"]
