"""Archives of a cache: what travels, and what a hostile one cannot do."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from builds import ADD, build, kernel, load

from jitload.cache.archive import pack, unpack
from jitload.errors import CacheError

LIMIT = 10**9


def outside(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.parametrize("suffix", [".tar.gz", ""])
def test_packed_entries_are_found_where_they_are_unpacked(cache, tmp_path, monkeypatch, suffix):
    paths = [build(ADD), build(kernel("k"), "other.v2-x")]
    archive = tmp_path / f"all{suffix}"
    assert pack(cache, archive) == 2
    unpacked = tmp_path / "another"
    done = unpack(unpacked, archive, max_size=LIMIT)
    assert (done.added, done.present) == (2, 0)
    done = unpack(unpacked, archive, max_size=LIMIT)
    assert (done.added, done.present) == (0, 2)
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(unpacked))
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    assert build(ADD) == unpacked / paths[0].relative_to(cache)
    assert list(load(kernel("k"), "other.v2-x")) == ["k"]
    assert {path.stat().st_mode & 0o777 for path in unpacked.rglob("*") if path.is_dir()} == {0o700}


def test_what_cannot_be_packed_leaves_no_file(cache, tmp_path):
    with pytest.raises(CacheError, match="has no entry to pack"):
        pack(cache, tmp_path / "a.tar.gz")
    path = build(ADD)
    with pytest.raises(CacheError, match=r"must end in \.tar\.gz, or have no suffix"):
        pack(cache, tmp_path / "a.zip")
    os.truncate(path, 100)
    with pytest.raises(CacheError, match=r"is damaged: m\.so has 100 bytes"):
        pack(cache, tmp_path / "a.tar.gz")
    assert os.listdir(tmp_path) == ["cache"]


KEY = "m-" + "0" * 64
LEAF = f"{KEY}/0000-{'0' * 16}"


def member(
    name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"x", link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data) if kind == tarfile.REGTYPE else 0
    return info, data


HOSTILE = {
    "parent": member("../evil"),
    "parent inside": member(f"{LEAF}/../../../evil"),
    "absolute": member("/tmp/jitload-evil"),
    "dot": member(f"{LEAF}/."),
    "hidden work": member(".work/x/y"),
    "no key": member("m-12/0000-0000000000000000/m.so"),
    "symbolic link": member(f"{LEAF}/m.so", tarfile.SYMTYPE, link="/etc/passwd"),
    "hard link": member(f"{LEAF}/m.so", tarfile.LNKTYPE, link="/etc/passwd"),
    "pipe": member(f"{LEAF}/m.so", tarfile.FIFOTYPE),
    "directory": member(LEAF, tarfile.DIRTYPE),
    "long name": member(f"{LEAF}/{'a' * 300}"),
    "newline": member(f"{LEAF}/a\nb"),
    "an entry without a manifest": member(f"{LEAF}/m.so"),
    "a manifest that is none": member(f"{LEAF}/manifest.json", data=b"[" * 100_000),
    "an empty manifest": member(f"{LEAF}/manifest.json", data=b"{}"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_writes_nothing(tmp_path, kind):
    info, data = HOSTILE[kind]
    forms = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
    for form in forms[1:] if kind == "long name" else forms:  # USTAR has no such name
        with tarfile.open(tmp_path / "a.tar.gz", "w:gz", format=form) as tar:
            tar.addfile(info, io.BytesIO(data))
        with pytest.raises(CacheError, match=r"cannot be unpacked: .*\. Nothing was added to the cache\."):
            unpack(tmp_path / "cache", tmp_path / "a.tar.gz", max_size=LIMIT)
        assert outside(tmp_path) <= {"a.tar.gz", "cache", "cache/.work"}
    assert not Path("/tmp/jitload-evil").exists()


def test_an_archive_that_unfolds_to_too_much_is_refused(tmp_path):
    with gzip.open(tmp_path / "a.tar.gz", "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
        info, data = member(f"{LEAF}/m.so", data=bytes(50_000_000))
        tar.addfile(info, io.BytesIO(data))
    with pytest.raises(
        CacheError, match="it contains more than 1000000 bytes; `jitload cache unpack --max-size` allows more"
    ):
        unpack(tmp_path / "cache", tmp_path / "a.tar.gz", max_size=10**6)
    info.size = 8 << 60
    with pytest.raises(CacheError, match="it contains more than"):
        (tmp_path / "b.tar.gz").write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT)))
        unpack(tmp_path / "cache", tmp_path / "b.tar.gz", max_size=10**6)
    assert outside(tmp_path / "cache") <= {".work"}


def test_an_archive_cut_short_or_changed_leaves_nothing(cache, tmp_path):
    build(ADD)
    archive = tmp_path / "a.tar.gz"
    pack(cache, archive)
    data = archive.read_bytes()
    middle = len(data) // 2
    whole = gzip.decompress(data).rstrip(b"\0")
    without_end = gzip.compress(whole.ljust(-(-len(whole) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE, b"\0"))
    cut = [data[:length] for length in (0, 100, 512, 5000, middle)]
    for wrong in (*cut, data[:50] + b"\1\2\3" + data[53:], without_end):
        archive.write_bytes(wrong)
        with pytest.raises(CacheError, match="Nothing was added to the cache"):
            unpack(tmp_path / "another", archive, max_size=LIMIT)
        assert outside(tmp_path / "another") <= {".work"}


def test_a_changed_byte_is_found(cache, tmp_path):
    path = build(ADD)
    pack(cache, tmp_path / "a.tar.gz")
    data = gzip.decompress((tmp_path / "a.tar.gz").read_bytes())
    library = path.read_bytes()
    offset = data.index(library) + len(library) // 2
    data = data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(data))
    with pytest.raises(CacheError, match="does not have the SHA-256"):
        unpack(tmp_path / "another", tmp_path / "a.tar.gz", max_size=LIMIT)


def test_a_file_that_an_entry_does_not_name_is_refused(cache, tmp_path):
    path = build(ADD)
    pack(cache, tmp_path / "a.tar.gz")
    (tmp_path / "a.tar").write_bytes(gzip.decompress((tmp_path / "a.tar.gz").read_bytes()))
    with tarfile.open(tmp_path / "a.tar", "a", format=tarfile.USTAR_FORMAT) as tar:
        info, data = member(f"{path.parent.parent.name}/{path.parent.name}/evil.so")
        tar.addfile(info, io.BytesIO(data))
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress((tmp_path / "a.tar").read_bytes()))
    with pytest.raises(CacheError, match=r"'evil\.so', which is not in its manifest"):
        unpack(tmp_path / "another", tmp_path / "a.tar.gz", max_size=LIMIT)


@pytest.fixture
def directory(cache, tmp_path):
    """Return a directory with the archives of two libraries."""
    build(ADD)
    build(kernel("k"), "other")
    path = tmp_path / "kernels"
    assert pack(cache, path) == 2
    return path


def test_a_directory_has_the_digest_of_each_archive(directory, cache, tmp_path):
    digests = json.loads((directory / "manifest.json").read_text())
    assert sorted(path.name for path in directory.iterdir()) == sorted((*digests, "manifest.json"))
    for name, digest in digests.items():
        assert hashlib.sha256((directory / name).read_bytes()).hexdigest() == digest
    pack(cache, tmp_path / "again")
    assert (tmp_path / "again" / "manifest.json").read_bytes() == (directory / "manifest.json").read_bytes()
    with pytest.raises(CacheError, match=r"kernels cannot be written: Directory not empty"):
        pack(cache, directory)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


HARM = {
    "another byte": (flip, "does not have the digest in manifest.json"),
    "a missing file": (Path.unlink, "No such file"),
}


@pytest.mark.parametrize("name", HARM)
def test_every_digest_of_a_directory_is_compared(directory, tmp_path, name):
    harm, words = HARM[name]
    harm(max(directory.glob("*.tar.gz")))
    with pytest.raises(CacheError, match=f"(?s){words}.*Nothing was added to the cache"):
        unpack(tmp_path / "another", directory, max_size=LIMIT)
    assert not list((tmp_path / "another").glob("*-*"))
