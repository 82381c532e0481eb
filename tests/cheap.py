"""A build that costs nothing, for tests of the cache that need many."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jitload.cache.entry import Entry, find_entry
from jitload.cache.key import CacheKey
from jitload.cache.store import Work, claim_entry
from jitload.settings import read_settings


def make_key(name: str = "cheap", *words: str) -> CacheKey:
    """Return a key of its own for each name and words."""
    return CacheKey.of(name, (("words", words),))


def get(
    cache_dir: Path, key: CacheKey, make: Callable[[Work], None] | None = None, headers: tuple[Path, ...] = ()
) -> Entry:
    """Return an entry of the cache as `pipeline.find_or_build` does, with a product that says what it was made from."""
    settings = read_settings()
    if entry := find_entry(cache_dir, key, settings):
        return entry
    with claim_entry(cache_dir, key, settings) as work:
        if work.entry:
            return work.entry
        if make is not None:
            make(work)
        text = "".join(path.read_text() for path in headers if path.is_file())
        (work.dir / "product").write_text(f"{key.digest} {text}")
        (work.dir / "source").write_text("source")
        return work.publish("product", headers)


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[Path]:
    """Mount a file system of a few bytes, or skip the test where that is not permitted."""
    directory.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(directory)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)
