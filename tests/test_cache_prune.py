"""What is removed when a cache has grown too large, and what stays."""

import os
import time
from pathlib import Path

import pytest
from cheap import get, make_key

from jitload.cache import prune
from jitload.cache.entry import find_entry, write_uses
from jitload.cache.store import temporary_dir
from jitload.settings import read_settings


@pytest.fixture(autouse=True)
def checks_after_each_build(monkeypatch):
    monkeypatch.setattr("jitload.cache.store._BUILDS_PER_CHECK", 1)


def fill(cache: Path, count: int, size: int = 100_000) -> list[Path]:
    def large(work):
        (work.dir / "large").write_bytes(bytes(size))

    paths = []
    for number in range(count):
        paths.append(get(cache, make_key(f"m{number}"), large).dir)
        then = time.time() - 1000 + number
        if paths[-1].exists():
            os.utime(paths[-1] / "manifest.json", (then, then))
    return paths


def test_a_cache_above_its_limit_loses_the_entries_used_least_recently(empty_cache, monkeypatch):
    monkeypatch.setenv("JITLOAD_CACHE_LIMIT", "500kB")
    paths = fill(empty_cache, 12)
    kept = [path.exists() for path in paths]
    assert kept == sorted(kept)
    assert 3 <= sum(kept) <= 5
    assert os.listdir(empty_cache / ".work") == []
    assert all(get(empty_cache, make_key(f"m{number}")).product.is_file() for number in range(12))


def test_the_entries_used_last_are_not_pruned(empty_cache, monkeypatch):
    paths = fill(empty_cache, 6)
    assert find_entry(empty_cache, make_key("m0"), read_settings())
    write_uses()
    done = prune.prune(empty_cache, max_size=250_000)
    assert [path.exists() for path in paths] == [True, False, False, False, False, True]
    assert [item.name for item in done.removed] == ["m1", "m2", "m3", "m4"]


def test_no_limit_and_no_pruning_on_a_network(cache, monkeypatch):
    monkeypatch.setenv("JITLOAD_CACHE_LIMIT", "0")
    assert all(path.exists() for path in fill(cache, 5))
    monkeypatch.setenv("JITLOAD_CACHE_LIMIT", "1kB")
    monkeypatch.setattr("jitload.cache.locks._LOCAL_FILE_SYSTEMS", frozenset())
    get(cache, make_key("one more"))
    assert len(list(cache.glob("m*-*/*/product"))) == 5


def test_a_hit_prunes_nothing(cache, monkeypatch):
    paths = fill(cache, 3)
    monkeypatch.setenv("JITLOAD_CACHE_LIMIT", "1kB")
    get(cache, make_key("m0"))
    assert all(path.exists() for path in paths)


def test_several_processes_may_prune_at_a_time(empty_cache, monkeypatch):
    paths, rename = fill(empty_cache, 4), os.rename
    (empty_cache / "other-files" / "mine.bad").mkdir(parents=True)

    def slow(source: str | Path, target: str | Path) -> None:
        monkeypatch.setattr("os.rename", rename)
        assert len(prune.prune(empty_cache, max_size=250_000).removed) == 2
        rename(source, target)

    monkeypatch.setattr("os.rename", slow)
    assert prune.prune(empty_cache, max_size=250_000).left <= 250_000
    assert [path.exists() for path in paths] == [False, False, True, True]
    assert (empty_cache / "other-files" / "mine.bad").exists()


def test_the_next_build_removes_directories_that_a_killed_pruner_left(empty_cache):
    (path,) = fill(empty_cache, 1)
    with temporary_dir(empty_cache, "prune") as alive:
        lock_of_a_dead_process = alive.with_name(alive.name[:-1])
        (lock_of_a_dead_process / "entry").mkdir(parents=True)
        get(empty_cache, make_key("while another process prunes"))
        assert os.listdir(empty_cache / ".work") == [alive.name]
    assert os.listdir(empty_cache / ".work") == []
    assert path.is_dir()
