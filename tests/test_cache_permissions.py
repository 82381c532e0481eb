"""Who may write a cache, and the permissions of what jitload creates."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from builds import ADD, build

import jitload
from jitload.cache.entry import check_cache_dir
from jitload.settings import read_settings


def refusal(directory: Path) -> str:
    with pytest.raises(jitload.errors.CacheError) as caught:
        check_cache_dir(directory, read_settings())
    return str(caught.value)


def test_a_directory_that_everyone_may_write_is_refused_with_the_repair(cache):
    build(ADD)
    cache.chmod(0o777)
    with pytest.raises(jitload.errors.CacheError) as caught:
        build(ADD)
    assert str(caught.value) == (
        f"the cache {cache} is not trusted: everyone can write to {cache}. Repair it with: chmod o-w '{cache}'"
    )
    cache.chmod(0o1777)  # as /tmp: nobody can replace what is another's
    build(ADD)
    (entry,) = cache.glob("m-*")
    entry.chmod(0o1777)
    with pytest.raises(jitload.errors.CacheError, match="everyone can write to"):
        build(ADD)


def test_a_parent_that_everyone_may_write_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    assert f"everyone can write to {tmp_path}" in refusal(tmp_path / "not" / "yet")
    link = tmp_path.parent / "link"
    link.symlink_to(tmp_path / "inner")
    (tmp_path / "inner").mkdir()
    try:
        assert f"everyone can write to {tmp_path}" in refusal(link)
    finally:
        link.unlink()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_or_group_is_refused(tmp_path, monkeypatch):
    os.chown(tmp_path, 12345, -1)
    assert refusal(tmp_path) == (
        f"the cache {tmp_path} is not trusted: {tmp_path} belongs to user 12345, who is neither this user nor root. "
        "Set JITLOAD_CACHE_DIR to a directory of your own."
    )
    os.chown(tmp_path, 0, 12345)
    tmp_path.chmod(0o770)
    assert refusal(tmp_path) == (
        f"the cache {tmp_path} is not trusted: group 12345 can write to {tmp_path}. "
        f"Repair it with: chmod g-w '{tmp_path}', or trust the group with JITLOAD_TRUST_GROUP=1."
    )
    monkeypatch.setenv("JITLOAD_TRUST_GROUP", "1")
    check_cache_dir(tmp_path, read_settings())


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_directories_are_private_whatever_the_umask(cache, umask):
    before = os.umask(umask)
    try:
        build(ADD)
    finally:
        os.umask(before)
    modes = {
        str(path.relative_to(cache)): path.stat().st_mode & 0o777
        for path in [cache, *cache.rglob("*")]
        if path.is_dir()
    }
    assert set(modes.values()) == {0o700}, modes
    assert ".tools" in modes
