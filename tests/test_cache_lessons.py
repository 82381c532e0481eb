"""Failures known from the caches of other projects."""

from __future__ import annotations

import logging
import os
import subprocess

import pytest
from builds import ADD, build, kernel, load, python_command, python_env, run_python
from cheap import get, make_key

from jitload.cache.entry import find_entry
from jitload.settings import read_settings


def test_the_key_does_not_depend_on_earlier_builds_or_the_hash_seed():
    code = "import builds; print(builds.build(builds.ADD, 'history'))"
    others = "import builds; builds.build(builds.kernel('add', 'x[0] = 1;'), 'history'); "
    paths = {
        run_python(code, {"PYTHONHASHSEED": "1"}).stdout,
        run_python(others + code, {"PYTHONHASHSEED": "2"}).stdout,
    }
    assert len(paths) == 1
    assert paths.pop().endswith("history.so\n")


def test_each_build_has_a_directory_of_its_own(cache):
    places = []
    for name in ("one", "two"):
        get(cache, make_key(name), lambda work: places.append(work.dir))
    get(cache, make_key("one"), lambda work: places.append(work.dir))
    assert len(set(places)) == len(places) == 2
    assert not list(cache.rglob(".ninja*"))


def test_a_published_entry_is_never_changed(cache, monkeypatch):
    path = build(ADD)

    def state() -> dict[str, tuple[int, int, int]]:
        return {
            entry.name: (entry.stat().st_ino, entry.stat().st_mtime_ns, entry.stat().st_ctime_ns)
            for entry in os.scandir(path.parent)
        }

    before = state()
    load(ADD)
    monkeypatch.setenv("JITLOAD_MODE", "rebuild")
    assert build(ADD) != path
    assert state() == before


def test_a_wait_has_no_limit(cache, monkeypatch):
    """However long the reports have been coming, the lock is waited for."""
    monkeypatch.setattr("jitload.cache.locks._FIRST_REPORT_S", 0.05)
    monkeypatch.setattr("jitload.cache.locks._NEXT_REPORTS_S", 0.05)
    code = f"""
import sys, time, pathlib, cheap
def slow(work):
    print("builds", flush=True)
    time.sleep(1.5)
cheap.get(pathlib.Path({str(cache)!r}), cheap.make_key(), slow)
"""
    with subprocess.Popen(python_command(code), env=python_env(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "builds\n"
        get(cache, make_key(), lambda _: pytest.fail("it was built twice"))


def test_an_import_makes_no_directory(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    env = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    code = "import os; os.environ.pop('JITLOAD_CACHE_DIR'); import jitload, jitload.pipeline, jitload.cli"
    done = run_python(code, env)
    assert (done.returncode, done.stderr, os.listdir(home)) == (0, "", [])


def test_a_build_says_that_it_begins_and_how_long_it_took(caplog):
    with caplog.at_level(logging.INFO, "jitload"):
        build(kernel("said"), "said")
        decision, first, *_, last = [record.message for record in caplog.records if "said" in record.message]
        assert decision.startswith("said is not in the cache: ")
        assert first.startswith("building said in ")
        assert last.startswith("built said in ")
        assert last.endswith(" s")
        caplog.clear()
        build(kernel("said"), "said")
        (decision,) = [record.message for record in caplog.records]
        assert decision.startswith("said is in the cache: ")


def test_an_entry_needs_no_other(cache):
    build(ADD)
    path = build(kernel("k"), "other")
    for place in cache.iterdir():
        if place != path.parents[1] and place.name != ".tools":
            subprocess.run(["rm", "-r", str(place)], check=True)
    assert build(kernel("k"), "other") == path
    assert list(load(kernel("k"), "other")) == ["k"]
    assert find_entry(cache, make_key(), read_settings()) is None
