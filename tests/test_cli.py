"""The command `jitload cache`: its output, and the files that it must not touch."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builds import ADD, ARCH, build, kernel, python_command, python_env, run_jitload

from jitload.cli import main
from jitload.errors import CompileError


def run(capsys, *words: str) -> tuple[int, str, str]:
    code = main(["cache", *words])
    output = capsys.readouterr()
    return code, output.out, output.err


def key_of(path: Path) -> str:
    return path.parent.parent.name[-64:]


def test_a_path_and_an_empty_list_make_no_directory(empty_cache, capsys):
    assert run(capsys, "path") == (0, f"{empty_cache}\n", "")
    assert run(capsys, "list") == (0, f"name  arch  age  size  key\n0 entries, 0 B, in {empty_cache}\n", "")
    assert (run(capsys, "clear")[0], run(capsys, "prune", "--max-age", "1d")[0]) == (0, 0)
    assert not empty_cache.exists()


def test_list_shows_each_entry(cache, capsys):
    path = build(ADD, "vec")
    code, out, _ = run(capsys, "list")
    rows = [line.split() for line in out.splitlines()]
    assert (code, [row[0] for row in rows]) == (0, ["name", "vec", "1"])
    assert rows[1][1] == ARCH
    assert rows[1][-1] == key_of(path)[:16]
    (row,) = [json.loads(line) for line in run(capsys, "list", "--json")[1].splitlines() if '"vec"' in line]
    assert row["key"] == key_of(path)
    assert row["size"] == sum(file.stat().st_size for file in path.parent.iterdir())
    assert row["dir"] == str(path.parent)
    assert row["age_s"] < 60


def test_prune_removes_what_was_used_least_recently(cache, capsys):
    paths = [build(kernel(f"k{number}"), f"m{number}") for number in range(3)]
    for age_s, path in zip((3000, 1000, 2000), paths, strict=True):
        then = time.time() - age_s
        os.utime(path.parent / "manifest.json", (then, then))
    assert run(capsys, "prune")[0] == 2
    assert run(capsys, "prune", "--max-age", "40m")[1].startswith("removed 1 entry")
    assert [path.exists() for path in paths] == [False, True, True]
    size = sum(file.stat().st_size for file in cache.glob("*-*/*/*") if file.parent.parent.name[0] != ".")
    assert run(capsys, "prune", "--max-size", str(size - 1))[1].startswith("removed 1 entry")
    assert [path.exists() for path in paths] == [False, True, False]
    assert build(kernel("k2"), "m2").exists()


def test_a_library_that_a_process_has_mapped_is_not_removed(cache, capsys):
    code = "import sys, builds; builds.load(builds.ADD); print('loaded', flush=True); sys.stdin.readline()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(python_command(code), env=python_env({"JITLOAD_LIBRARY": "now"}), **pipes) as process:
        assert process.stdout.readline() == "loaded\n"
        for command in (["clear"], ["prune", "--max-size", "0"]):
            returned, out, _ = run(capsys, *command)
            assert (returned, "1 entry in use" in out) == (0, True)
        assert [path.name for path in cache.glob("*-*/*/*.so")] == ["m.so"]
        process.stdin.write("\n")
    assert run(capsys, "prune", "--max-size", "0")[1].startswith("removed 1 entry")
    assert not list(cache.glob("*-*/*/*.so"))


def test_clear_removes_everything(cache, capsys, tmp_path, monkeypatch):
    path = build(ADD)
    os.truncate(build(kernel("k")), 10)
    build(kernel("k"))
    script = tmp_path / "broken-c++"
    script.write_text(f'#!/bin/sh\ncase "$*" in *wrapper.cc*) exit 1;; esac\nexec {shutil.which("c++")} "$@"\n')
    script.chmod(0o755)
    with monkeypatch.context() as patch, pytest.raises(CompileError, match="failed build is kept"):
        patch.setenv("JITLOAD_CXX", str(script))
        build(kernel("broken"))
    assert run(capsys, "clear")[1].startswith("removed 2 entries")
    left = {str(file.relative_to(cache)) for file in cache.rglob("*") if file.is_file()}
    assert {name.partition("/")[0] for name in left} <= {".tools", ".locks"}
    assert build(ADD) == path


def test_the_module_runs_as_a_command(cache):
    assert run_jitload("cache", "path").stdout == f"{cache}\n"
    assert run_jitload().returncode == 2


def test_the_command_is_light_to_import():
    code = (
        "import sys, jitload.cli; print(sorted({'torch', 'tvm_ffi', 'numpy', 'jinja2', 'tarfile'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=python_env(), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_cache_that_other_users_can_write_to_is_not_written(cache, capsys):
    build(ADD)
    cache.chmod(0o777)
    code, _, err = run(capsys, "clear")
    assert code == 1
    assert "everyone can write to" in err
