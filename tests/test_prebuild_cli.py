"""The command `jitload prebuild`: where requests come from, exit codes, what it prints, and what it ships."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest
from builds import ARCH, ROOT, kernel, run_jitload

import jitload
from jitload.cli import main
from jitload.prebuilding.files import read_requests


@pytest.fixture
def cache(cache, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    return cache


@pytest.fixture
def fresh_modules():
    """Let each test have a module `requests_here` of its own."""
    yield
    sys.modules.pop("requests_here", None)


def write_python(home: Path, text: str) -> str:
    path = home / "requests_here.py"
    path.write_text(text)
    return str(path)


def write_json(home: Path, rows: object) -> str:
    path = home / "requests.json"
    path.write_text(json.dumps(rows))
    return str(path)


def row(name: str, **more: object) -> dict:
    return {"name": name, "cuda_sources": kernel(name), **more}


def run(capsys, *words: str) -> tuple[int, str, str]:
    code = main(["prebuild", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_requests_may_have_another_name_or_be_in_a_module(cache, tmp_path, monkeypatch, fresh_modules):
    target = write_python(tmp_path, "MORE = ({'name': 'm'},)\ndef MADE():\n    yield from MORE\n")
    assert read_requests(f"{target}:MORE") == read_requests(f"{target}:MADE") == [{"name": "m"}]
    sys.modules.pop("requests_here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [directory for directory in sys.path if directory not in ("", str(tmp_path))])
    assert read_requests("requests_here:MORE") == [{"name": "m"}]


def test_json_has_a_line_for_each_request(cache, capsys, tmp_path):
    code, out, _ = run(capsys, write_json(tmp_path, [row("one"), {"name": "x"}]), "--arch", ARCH, "--json")
    built, bad = map(json.loads, out.splitlines())
    assert code == 1
    assert (built["name"], built["arch"], built["state"]) == ("one", ARCH, "built")
    assert Path(built["path"]).is_relative_to(cache)
    assert (bad["state"], bad["path"]) == ("failed", "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("REQUESTS = 3", "requests_here:REQUESTS must be a list of mappings, or a function that returns one"),
        ("", "the module requests_here has no 'REQUESTS'"),
        ("raise SystemExit(3)", "the module requests_here cannot be imported (SystemExit: 3)"),
        ("def REQUESTS():\n    return 1 / 0", "requests_here:REQUESTS() failed: ZeroDivisionError: division by zero"),
    ],
)
@pytest.mark.usefixtures("cache", "fresh_modules")
def test_a_python_file_without_requests_is_refused(capsys, tmp_path, text, words):
    code, out, err = run(capsys, write_python(tmp_path, text))
    assert (code, out) == (1, "")
    assert f"\njitload: {tmp_path}/requests_here.py: " in err
    assert words in err
    assert len(err.splitlines()) == 2  # the message, and the code of the error


CONTENTS = {"json.py": "REQUESTS = []\n", "deep.json": "[" * 100_000, "table.json": "{}"}


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere.py", "nowhere.py: there is no file"),
        ("no_such_module", "no_such_module: the module no_such_module cannot be imported"),
        ("a b/$(x)", "'a b/$(x)' names no requests: pass kernels.py, a.module or a record.json"),
        ("json.py", "'json' is also another module ("),
        ("deep.json", "deep.json cannot be read"),
        ("table.json", "table.json must be a list, which `jitload record` writes"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_a_target_without_requests_is_refused(capsys, tmp_path, monkeypatch, target, words):
    monkeypatch.chdir(tmp_path)
    for name, content in CONTENTS.items():
        (tmp_path / name).write_text(content)
    code, _, err = run(capsys, target)
    assert code == 1
    assert words in err


def test_a_bundle_is_what_was_asked_for_and_all_may_read_it(cache, capsys, tmp_path, monkeypatch):
    run(capsys, write_json(tmp_path, [row("other")]), "--arch", ARCH)
    target = write_json(tmp_path, [row("one"), row("two")])
    bundle = tmp_path / "bundle"
    bundle.mkdir(mode=0o700)
    (bundle / "theirs").touch(mode=0o600)
    code, out, _ = run(capsys, target, "--arch", ARCH, "--bundle", str(bundle), "--pack", str(tmp_path / "k.tar.gz"))
    assert code == 0
    assert f"added 2 entries to {bundle}; 0 were there already" in out
    assert f"packed 2 entries into {tmp_path}/k.tar.gz" in out
    assert sorted(path.name.partition("-")[0] for path in bundle.iterdir()) == ["one", "theirs", "two"]
    assert stat.S_IMODE((bundle / "theirs").stat().st_mode) == 0o600
    for path in (bundle, *bundle.rglob("*")):
        if path.name != "theirs":
            assert stat.S_IMODE(path.stat().st_mode) == (0o755 if path.is_dir() else 0o644)
    assert "2 were there already" in run(capsys, target, "--arch", ARCH, "--bundle", str(bundle))[1]
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("JITLOAD_CACHE_PATH", str(bundle))
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    path = jitload.build_inline("one", cuda_sources=kernel("one"), arch=ARCH)
    assert Path(path).is_relative_to(bundle)


def test_the_command_builds_from_another_directory(cache, tmp_path):
    target = write_json(tmp_path, [row("one")])
    words = ("prebuild", os.path.basename(target), "--arch", ARCH)
    done = run_jitload(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 built, 0 reused, 0 failed")
    assert list(cache.glob("one-*/*/one.so"))
    wrong = run_jitload("prebuild")
    assert (wrong.returncode, wrong.stdout) == (2, "")


@pytest.mark.parametrize("name", ["kernels.py", "triton_fill.py"])
def test_the_examples_are_built(cache, capsys, name):
    pytest.importorskip("triton")
    code, out, _ = run(capsys, str(ROOT / "examples" / "ahead" / name), "--arch", "sm_80", "--arch", "sm_90")
    sys.modules.pop(Path(name).stem, None)
    assert (code, out.partition(", in ")[0]) == (0, "4 built, 0 reused, 0 failed")
    assert run(capsys, str(ROOT / "examples" / "ahead" / name), "--arch", "sm_80,sm_90", "-qj2") == (0, "", "")
    sys.modules.pop(Path(name).stem, None)
