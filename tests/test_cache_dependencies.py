"""The files that a build read: what hand-written code reads besides its text, and how each file is recorded."""

import hashlib
import os
import subprocess
import time
from pathlib import Path

import pytest
from builds import EXPORT

import jitload
from jitload.cache import dependencies
from jitload.cache.dependencies import Dependency, StartTime, record_dependencies


@pytest.fixture
def get_value(tmp_path, monkeypatch):
    """A function that compiles C, which is quick, and returns what VALUE is there."""
    monkeypatch.setattr("jitload.pipeline._modules", {})
    (tmp_path / "source").mkdir()

    def run(text: str, dirs: list[Path], **options) -> int:
        (tmp_path / "source" / "get.c").write_text(text + EXPORT)
        module = jitload.load("m", sources=tmp_path / "source" / "get.c", extra_include_paths=dirs, **options)
        return module.get()

    return run


def test_a_header_that_shadows_one_of_a_package_is_seen(get_value, tmp_path):
    text = "#include <tvm/ffi/c_api.h>\n#ifndef VALUE\n#define VALUE 1\n#endif\n"
    (tmp_path / "dir").mkdir()
    assert get_value(text, [tmp_path / "dir"]) == 1
    (tmp_path / "dir" / "tvm" / "ffi").mkdir(parents=True)
    (tmp_path / "dir" / "tvm" / "ffi" / "c_api.h").write_text("#define VALUE 2\n#include_next <tvm/ffi/c_api.h>\n")
    assert get_value(text, [tmp_path / "dir"]) == 2


def test_a_library_that_was_linked_is_looked_at_again(get_value, tmp_path):
    values = []
    for value in (1, 2):
        (tmp_path / "v.c").write_text(f"int value(void) {{ return {value}; }}\n")
        for command in (["cc", "-fPIC", "-c", "v.c", "-o", "v.o"], ["ar", "rcs", "libv.a", "v.o"]):
            subprocess.run(command, cwd=tmp_path, check=True)
        values.append(
            get_value("int value(void);\n#define VALUE value()\n", [], extra_ldflags=[f"-L{tmp_path}", "-lv"])
        )
        (tmp_path / "libv.a").unlink()
    assert values == [1, 2]


def test_a_relative_directory_in_a_variable_is_in_the_working_directory(get_value, tmp_path, monkeypatch):
    monkeypatch.setenv("CPATH", ":.")
    results = []
    for directory, value in (("a", 1), ("b", 2), ("a", 3)):  # another directory, then a changed header
        (tmp_path / directory).mkdir(exist_ok=True)
        (tmp_path / directory / "value.h").write_text(f"#define VALUE {value}\n")
        monkeypatch.chdir(tmp_path / directory)
        results.append(get_value("#include <value.h>\n", []))
    assert results == [1, 2, 3]


@pytest.mark.parametrize("how", ["-I", "-isystem", "-iquote", "-idirafter", "CPATH", "C_INCLUDE_PATH"])
def test_a_header_that_appears_first_in_directories_of_options_and_variables_is_seen(
    get_value, tmp_path, monkeypatch, how
):
    first, last = tmp_path / "first", tmp_path / "last"
    for directory in (first, last):
        directory.mkdir()
    (last / "outer.h").write_text("#include <inner.h>\n")
    (last / "inner.h").write_text("#define VALUE 1\n")
    options = {}
    if how.startswith("-"):
        options["extra_cflags"] = [how, str(first), f"{how}{last}"]
    else:
        monkeypatch.setenv(how, f":{first}:{last}")
    text = f'#include "{"inner" if how == "-iquote" else "outer"}.h"\n'  # `-iquote` is not for <inner.h>
    assert get_value(text, [], **options) == 1
    (first / "inner.h").write_text("#define VALUE 2\n")
    assert get_value(text, [], **options) == 2


@pytest.mark.parametrize("macros", ["", '#define MORE "more.h"', "#define TEXT(x) #x\n#define MORE TEXT(more.h)"])
def test_what_has_include_asked_for_is_seen(get_value, tmp_path, macros):
    name = "MORE" if macros else '"more.h"'
    text = f"{macros}\n#if __has_include({name})\n#define VALUE 2\n#else\n#define VALUE 1\n#endif\n"
    assert get_value(text, [tmp_path / "dir"]) == 1
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "more.h").write_text("")
    assert get_value(text, [tmp_path / "dir"]) == 2


@pytest.mark.parametrize("where", ["named in full", "below an include directory", "named by a macro", "in a header"])
def test_a_file_that_assembly_takes_in_is_seen(get_value, tmp_path, where):
    file, options = tmp_path / "file", {}
    file.write_bytes(b"\1")
    name = {"below an include directory": "file"}.get(where, str(file))
    text = f'asm(".pushsection .rodata\\nbytes: .incbin \\"{name}\\"\\n.popsection");\n'
    if where == "named by a macro":
        text = text.replace(f'\\"{name}\\"', '\\"" FILE "\\"')
        options["extra_cflags"] = [f'-DFILE="{file}"']
    text += "extern const unsigned char bytes[];\n#define VALUE bytes[0]\n"
    if where == "in a header":
        (tmp_path / "assembly.h").write_text(text)
        text = '#include "assembly.h"\n'
    assert get_value(text, [tmp_path], **options) == 1
    file.write_bytes(b"\2")
    assert get_value(text, [tmp_path], **options) == 2


@pytest.mark.parametrize("flag", ["extra_cflags=@", "extra_ldflags=-Wl,@", "extra_ldflags=@"])
def test_a_file_of_options_is_looked_at_again(get_value, tmp_path, flag):
    keyword, option = flag.split("=")
    file, options = tmp_path / "options", {keyword: [f"{option}{tmp_path}/options"]}
    text = "extern const char given[];\n#define VALUE (long)given\n" if keyword == "extra_ldflags" else ""
    for value in (1, 2):
        file.write_text(f"-DVALUE={value}" if not text else f"{'' if ',' in option else '-Wl,'}--defsym=given={value}")
        assert get_value(text, [], **options) == value


def test_a_file_that_changes_within_a_tick_is_known_by_its_content(tmp_path, monkeypatch):
    path = tmp_path / "h.h"
    path.write_text("one")
    os.utime(path, (0, 0))  # as an archive that was unpacked just now
    monkeypatch.setattr(dependencies, "_digests", {})
    (young,) = record_dependencies([path], StartTime.now())
    assert not young.is_settled
    old_state = os.stat(path)
    path.write_text("two")
    # As if the clock had stood still: `stat` says what it said.
    monkeypatch.setattr("jitload.cache.dependencies.os.stat", lambda _: old_state)
    assert not young.is_unchanged()


def test_what_is_digested_is_remembered_only_when_it_is_quiet(tmp_path, monkeypatch):
    path = tmp_path / "h.h"
    path.write_text("one")
    (young,) = record_dependencies([path], StartTime.now())
    reads = []
    real = dependencies.digest_file
    monkeypatch.setattr(dependencies, "_digests", {})
    monkeypatch.setattr(dependencies, "digest_file", lambda path: reads.append(path) or real(path))
    assert [young.is_unchanged() for _ in range(3)] == [True] * 3
    assert len(reads) == 3
    monkeypatch.setattr(dependencies, "_TICK_NS", -(10**9))
    assert [young.is_unchanged() for _ in range(3)] == [True] * 3
    assert len(reads) == 4
    path.write_text("two")
    assert not young.is_unchanged()


@pytest.mark.parametrize("jump_s", [-7200, 0, 7200])
def test_an_edit_during_the_build_is_seen_though_the_clock_jumps(tmp_path, monkeypatch, jump_s):
    path, edited = tmp_path / "h.h", tmp_path / "edited.h"
    path.write_text("one")
    time.sleep(0.1)  # a busy machine may stop this process between its readings of the clocks
    clock = StartTime.now()
    edited.write_text("two")
    # The clock was set during the build, after which the files keep the times they had.
    now = dependencies.time.time_ns
    monkeypatch.setattr(dependencies.time, "time_ns", lambda: now() + jump_s * 10**9)
    records = {Path(record.path).name: record for record in record_dependencies([path, edited], clock)}
    assert records["edited.h"].digest == "" or jump_s > 0
    assert (records["h.h"].digest != "") or jump_s < 0


def test_a_pipe_or_device_in_place_of_a_header_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "n.h")
    for path in (str(tmp_path / "n.h"), "/dev/zero"):  # each would be read for ever
        assert not Dependency(path=path, size=0, digest=hashlib.sha256(b"").hexdigest()).is_unchanged()
