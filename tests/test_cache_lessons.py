"""What went wrong in other projects' caches: each failure has a test, here or where this file points to."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess

import pytest
from builds import ADD, build, kernel, load, python_command, python_env, run_python
from cheap import get, make_key

from jitload.cache.entry import find_entry
from jitload.settings import read_settings

WHERE = {
    "a scanner of includes that sees 8 of 1112 files": (
        "test_cache_dependencies.test_a_header_that_shadows_one_of_a_package_is_seen"
    ),
    "headers that change": "test_cpptext_includes.test_a_changed_header_gives_a_new_build",
    "flags that are not in the key": "test_cache.test_each_part_of_a_request_is_in_the_key",
    "a compiler that is not in the key": "test_cache_key.test_a_compiler_behind_a_script_that_changes_is_asked_again",
    "absolute paths in the key": "test_cache_key.test_two_users_with_the_same_headers_share_an_entry",
    "a key that depends on the process's history": "test_cache_lessons.test_the_key_knows_no_history",
    "ninja decides what is fresh": "test_cache.test_a_hit_starts_nothing_writes_nothing_and_imports_little",
    "a link in place and a lock of one node": (
        "test_cache_locks.test_the_loser_of_a_race_keeps_its_own_build_for_as_long_as_it_lives"
    ),
    "one .ninja_log for several processes": "test_cache_lessons.test_each_build_has_a_directory_of_its_own",
    "a load while another process builds": "test_cache_lessons.test_a_published_entry_is_never_changed",
    "a loser that cannot see the winner": (
        "test_cache_locks.test_the_loser_of_a_race_keeps_its_own_build_for_as_long_as_it_lives"
    ),
    "a partial file that is taken for whole": (
        "test_cache_faults.test_a_disk_that_fills_up_at_any_point_leaves_no_half_entry"
    ),
    "a lock file that outlives its process": (
        "test_cache_locks.test_who_waits_says_for_whom_and_goes_on_at_once_when_the_builder_dies"
    ),
    "a limit of 30 s on a wait": "test_cache_lessons.test_a_wait_has_no_limit",
    "ENOLCK": "test_cache_locks.test_a_file_system_without_locks_is_said_once",
    "read-only images": "test_cache_store.test_a_read_only_cache_without_the_entry_builds_in_private_and_says_so",
    "users that are not root": "test_cache_store.test_another_user_builds_in_private_where_the_home_is_closed",
    "directories made by an import": "test_cache_lessons.test_an_import_makes_no_directory",
    "cuobjdump at run time": "test_loader.test_a_library_needs_no_tools",
    "an architecture that the compiler does not know": (
        "test_errors_user.test_an_architecture_that_this_nvrtc_does_not_know_lists_those_it_does"
    ),
    "an opaque CalledProcessError": "test_errors_tools.test_a_failed_host_compile_keeps_its_directory_and_says_where",
    "a silent compile in production": "test_cache_lessons.test_a_build_says_that_it_begins_and_how_long_it_took",
    "a compile in production at all": "test_cache_modes.test_load_only_says_which_parts_of_the_key_differ",
    "SIGBUS from a library cut short": "test_cache.test_a_damaged_entry_is_set_aside_and_built_again",
    "what other ranks need": "test_cache_lessons.test_an_entry_needs_no_other",
}


@pytest.mark.parametrize("failure", WHERE)
def test_the_pointers_point_at_something(failure):
    module, name = WHERE[failure].split(".")
    assert callable(getattr(importlib.import_module(module), name))


def test_the_key_knows_no_history():
    fresh = "import builds; print(builds.build(builds.ADD, 'history'))"
    others = "import builds; [builds.load(builds.kernel('add', f'x[{i}] = 1;'), 'history') for i in range(3)]; "
    programs = ((fresh, "1"), (others + fresh, "2"), (fresh, "3"))
    paths = {run_python(code, {"PYTHONHASHSEED": seed}).stdout for code, seed in programs}
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
    run_python("import builds; builds.load(builds.ADD)")
    monkeypatch.setenv("JITLOAD_MODE", "rebuild")
    assert build(ADD) != path
    run_python("import builds; builds.build(builds.ADD)", {"JITLOAD_MODE": "rebuild"})
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
        first, last = [record.message for record in caplog.records if "said" in record.message]
        assert first.startswith("building said in ")
        assert last.startswith("built said in ")
        assert last.endswith(" s")
        caplog.clear()
        build(kernel("said"), "said")
        assert caplog.text == ""


def test_an_entry_needs_no_other(cache):
    build(ADD)
    path = build(kernel("k"), "other")
    for place in cache.iterdir():
        if place != path.parents[1] and place.name != ".tools":
            subprocess.run(["rm", "-r", str(place)], check=True)
    assert build(kernel("k"), "other") == path
    assert list(load(kernel("k"), "other")) == ["k"]
    assert find_entry(cache, make_key(), read_settings()) is None
