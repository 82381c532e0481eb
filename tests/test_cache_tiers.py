"""Tiers: bundles in packages, shared directories, the local cache; in which order, and whom they trust."""

import os
import shutil
from pathlib import Path

import pytest
from builds import build, kernel, load, run_python

import jitload
from jitload import errors
from jitload.cache import remote
from jitload.cache.tiers import BUNDLES_DIR

TEXT = kernel("f")


@pytest.fixture
def tier(used_cache, tmp_path, monkeypatch):
    """Return a function that gives a cache of that name, and one that holds the library of `TEXT` where it is asked."""
    monkeypatch.setattr("jitload.pipeline._modules", {})
    errors.warn_once.cache_clear()

    def make(name: str, *, is_filled: bool = False) -> Path:
        cache = tmp_path / name
        if is_filled:
            key_dir = build(TEXT).parents[1]  # in the run's own cache
            for directory in (key_dir, *used_cache.glob("runtime-*")):
                shutil.copytree(directory, cache / directory.name)
        cache.mkdir(exist_ok=True)
        cache.chmod(0o700)
        return cache

    yield make
    errors.warn_once.cache_clear()


def use(monkeypatch, local: Path, *shared: Path) -> None:
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(local))
    monkeypatch.setenv("JITLOAD_CACHE_PATH", os.pathsep.join(map(str, shared)))


def listing(cache: Path) -> list[str]:
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*"))


def package(tmp_path: Path, bundle: Path | None) -> Path:
    """Install a package with a bundle by hand, and return the directory that it is installed in."""
    site = tmp_path / "site"
    (site / "pack_with_kernels").mkdir(parents=True)
    (site / "pack_with_kernels" / "__init__.py").write_text(
        "raise RuntimeError('a bundle is found and not imported')\n"
    )
    if bundle is not None:
        (site / BUNDLES_DIR).mkdir()
        bundle.rename(site / BUNDLES_DIR / "pack_with_kernels")
    return site


def test_a_shared_directory_is_used_and_never_written(tier, monkeypatch):
    shared, local = tier("shared", is_filled=True), tier("local")
    before = listing(shared)
    use(monkeypatch, local, shared)
    assert build(TEXT).is_relative_to(shared)
    assert list(load(TEXT)) == ["f"]
    assert listing(shared) == before
    assert list(local.glob("*-*")) == []
    done = run_python(
        "import builds, test_cache_tiers; print(builds.build(test_cache_tiers.TEXT))"
    )  # notes its uses at its end
    assert done.stdout.startswith(str(shared)), done.stderr
    assert listing(shared) == before


def test_the_first_directory_with_the_library_is_used(tier, monkeypatch):
    empty, first, second, local = tier("empty"), tier("1", is_filled=True), tier("2", is_filled=True), tier("local")
    use(monkeypatch, local, empty, first, second)
    assert build(TEXT).is_relative_to(first)
    use(monkeypatch, local, second, first)
    assert build(TEXT).is_relative_to(second)
    use(monkeypatch, first, empty, second)
    assert build(TEXT).is_relative_to(second)
    use(monkeypatch, first, empty)
    assert build(TEXT).is_relative_to(first)


def test_a_library_that_no_directory_has_is_built_into_the_local_cache(tier, monkeypatch):
    shared, local = tier("shared", is_filled=True), tier("local")
    before = listing(shared)
    use(monkeypatch, local, shared)
    assert build(kernel("g")).is_relative_to(local)
    assert listing(shared) == before
    assert list(local.glob("runtime-*")) == []  # the shared one did


def test_a_missing_shared_directory_is_warned_of_once(tier, monkeypatch, caplog, tmp_path):
    use(monkeypatch, tier("local", is_filled=True), tmp_path / "nowhere")
    build(TEXT)
    build(TEXT)
    assert caplog.text.count(f"JITLOAD_CACHE_PATH names {tmp_path / 'nowhere'}, which is not a directory") == 1


def test_a_shared_directory_that_other_users_can_write_to_is_refused(tier, monkeypatch):
    shared = tier("shared", is_filled=True)
    shared.chmod(0o777)
    use(monkeypatch, tier("local"), shared)
    with pytest.raises(jitload.errors.CacheError) as caught:
        build(TEXT)
    assert str(caught.value).startswith(f"JITLOAD_CACHE_PATH: the cache {shared} is not trusted: everyone can write to")
    assert f"chmod o-w '{shared}'" in str(caught.value)


def test_load_only_searches_all_directories_and_names_them_in_its_error(tier, monkeypatch):
    shared, local = tier("shared", is_filled=True), tier("local")
    use(monkeypatch, local, shared)
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    assert build(TEXT).is_relative_to(shared)
    with pytest.raises(jitload.errors.CacheError) as caught:
        build(kernel("g"))
    assert f"module 'm' is not in the cache {local}, nor in {shared}, and JITLOAD_MODE=load-only" in str(caught.value)
    assert "The nearest entry, m-" in str(caught.value)
    assert "sources: " in str(caught.value)
    assert list(local.glob("*-*")) == []


def test_rebuild_builds_what_a_shared_directory_has(tier, monkeypatch):
    shared, local = tier("shared", is_filled=True), tier("local")
    use(monkeypatch, local, shared)
    monkeypatch.setenv("JITLOAD_MODE", "rebuild")
    assert build(TEXT).is_relative_to(local)


def test_a_bundle_in_a_package_goes_first(tier, monkeypatch, tmp_path):
    bundle, shared, local = tier("bundle", is_filled=True), tier("shared", is_filled=True), tier("local")
    monkeypatch.syspath_prepend(package(tmp_path, bundle))
    use(monkeypatch, local, shared)
    path = build(TEXT)
    assert path.is_relative_to(tmp_path / "site" / BUNDLES_DIR / "pack_with_kernels")
    assert list(load(TEXT)) == ["f"]
    assert list(local.glob("*-*")) == []


def test_a_bundle_that_other_users_can_write_to_is_skipped(tier, used_cache, monkeypatch, tmp_path, caplog):
    site = package(tmp_path, tier("bundle", is_filled=True))
    (site / BUNDLES_DIR / "pack_with_kernels").chmod(0o777)
    monkeypatch.syspath_prepend(site)
    local = tier("local")
    use(monkeypatch, local, used_cache)
    assert build(TEXT).is_relative_to(local)
    assert "a bundle is skipped: the cache " in caplog.text


def test_no_message_shows_a_password(tier, used_cache, monkeypatch, caplog):
    monkeypatch.setattr(remote, "_failures", {})
    use(monkeypatch, tier("local"), used_cache)
    monkeypatch.setenv("JITLOAD_CACHE_REMOTE", "nosuchscheme://me:hunter2@host/x")
    build(TEXT)
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    with pytest.raises(jitload.errors.CacheError) as caught:
        build(kernel("other"))
    assert "nosuchscheme://…@host/x" in caplog.text
    assert "nosuchscheme://…@host/x" in str(caught.value)
    assert "hunter2" not in caplog.text + str(caught.value)
