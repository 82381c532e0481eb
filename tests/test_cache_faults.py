"""Faults of the machine, injected with real means where there are any, and who may write a cache."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from builds import ADD, build, load, run_python, work_dirs
from cheap import get, make_key, small_disk

import jitload
from jitload.cache.entry import check_cache_dir, find_entry
from jitload.errors import CacheError, CacheWriteError
from jitload.settings import read_settings


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EFBIG])
def test_a_build_at_a_limit_of_the_process_says_so(cache, number):
    def fail(_):
        raise OSError(number, os.strerror(number))

    with pytest.raises(
        CacheError, match=rf"the build of 'cheap' failed: \[Errno {number}\].* raise this process's limit"
    ):
        get(cache, make_key(), fail)
    assert work_dirs(cache) == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE])
def test_an_unreadable_entry_is_skipped_unless_the_process_is_at_a_limit(cache, monkeypatch, number, caplog):
    key = make_key()
    product = get(cache, key).product

    def refuse(path, *options):
        if str(path).endswith("manifest.json") and not options[0] & os.O_WRONLY and str(product.parent) in str(path):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *options)

    real = os.open
    with monkeypatch.context() as patch:
        patch.setattr("jitload.cache.entry.os.open", refuse)
        if number == errno.EMFILE:
            with pytest.raises(CacheError, match=r"cannot be read: .*Too many open files.*Raise this process's limit"):
                find_entry(cache, key, read_settings())
        else:
            assert get(cache, key).product != product
            assert "it is skipped" in caplog.text
    assert product.is_file()


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Make a directory read-only: by its bits, or for root, whom bits do not bind, by a mount."""
    if os.getuid() != 0:
        folders = [directory, *(path for path in directory.rglob("*") if path.is_dir())]
        for folder in folders:
            folder.chmod(0o500)
        yield
        for folder in folders:
            folder.chmod(0o700)
        return
    options = (["--bind", str(directory)], ["-o", "remount,ro,bind"])
    if any(
        subprocess.run(["mount", *words, str(directory)], capture_output=True, check=False).returncode
        for words in options
    ):
        subprocess.run(["umount", str(directory)], capture_output=True, check=False)
        pytest.skip("this root may not mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)  # what was loaded from it stays mapped


def test_a_read_only_cache_with_the_entry_works(cache, caplog):
    path = build(ADD)
    with read_only(cache):
        assert build(ADD) == path
        assert list(load(ADD)) == ["add"]
    assert caplog.text == ""


def test_a_cache_that_cannot_be_written_is_replaced_once_for_the_process(tmp_path):
    (tmp_path / "file").write_text("")
    code = "import builds; paths = {builds.build(builds.ADD) for _ in range(3)}; print(len(paths), *paths)"
    done = run_python(code, {"JITLOAD_CACHE_DIR": str(tmp_path / "file" / "cache"), "TMPDIR": str(tmp_path)})
    assert (done.stdout[:2], done.stderr.count("cannot store an entry")) == ("1 ", 1), done.stderr
    assert f" Building in {tmp_path}/jitload-" in done.stderr
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_is_no_failure_of_a_call(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("jitload.pipeline._modules", {})
    with small_disk(tmp_path / "disk", "64k") as disk:
        monkeypatch.setenv("JITLOAD_CACHE_DIR", str(disk / "cache"))
        path = build(ADD)
        assert not path.is_relative_to(disk)
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert list(jitload.load_module(path)) == ["add"]
        assert "cannot store an entry" in caplog.text
        assert not list((disk / "cache").glob("*-*/*"))
        assert work_dirs(disk / "cache") == []
    shutil.rmtree(path.parents[2])


@pytest.mark.parametrize("size", ["4k", "8k", "16k", "24k", "32k", "48k"])
def test_a_disk_that_fills_up_at_any_point_leaves_no_half_entry(tmp_path, monkeypatch, size):
    def large(work):
        for number in range(8):
            (work.dir / f"part{number}").write_bytes(bytes(3000))

    with small_disk(tmp_path / "disk", size) as disk:
        monkeypatch.setenv("JITLOAD_CACHE_DIR", str(disk))
        try:
            get(disk, make_key(), large)
        except CacheWriteError as error:
            assert "Set JITLOAD_CACHE_DIR" in str(error)
        entry = find_entry(disk, make_key(), read_settings())
        assert entry is None or entry.product.read_text().startswith(make_key().digest)
        assert work_dirs(disk) == []


def test_a_cache_removed_during_the_build_is_no_failure(cache, monkeypatch, caplog):
    real = jitload.codegen.wrapper.write_sources

    def remove_first(*arguments, **options):
        monkeypatch.setattr("jitload.codegen.wrapper.write_sources", real)
        shutil.rmtree(cache)
        return real(*arguments, **options)

    monkeypatch.setattr("jitload.codegen.wrapper.write_sources", remove_first)
    assert list(load(ADD)) == ["add"]
    assert "Building in " in caplog.text
    assert build(ADD).is_relative_to(cache)


def test_a_library_that_is_pruned_after_it_was_found_is_built_again(cache, monkeypatch):
    build(ADD)
    real = jitload.pipeline.find_or_build

    def lose(*arguments, **options):
        entry = real(*arguments, **options)
        monkeypatch.setattr("jitload.pipeline.find_or_build", real)
        shutil.rmtree(entry.dir.parent)
        return entry

    monkeypatch.setattr("jitload.pipeline.find_or_build", lose)
    assert list(load(ADD)) == ["add"]


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
    assert f"{tmp_path} belongs to user 12345, who is neither this user nor root. Set JITLOAD" in refusal(tmp_path)
    os.chown(tmp_path, 0, 12345)
    tmp_path.chmod(0o770)
    assert f"group 12345 can write to {tmp_path}; JITLOAD_TRUST_GROUP=1 trusts groups. Repair it" in refusal(tmp_path)
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
    assert ".locks" in modes
