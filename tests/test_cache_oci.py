"""Entries as an OCI image layout: what registries and signing tools see, and what is refused."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from builds import ADD, build, kernel

from jitload.cache.archive import pack, unpack
from jitload.cli import main
from jitload.errors import CacheError

LIMIT = 10**9


@pytest.fixture
def layout(cache, tmp_path):
    """Return a layout of two libraries."""
    build(ADD)
    build(kernel("k"), "other")
    path = tmp_path / "kernels.oci"
    assert pack(cache, path) == 2
    return path


def blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/")


def manifest_of(layout: Path) -> dict:
    (row,) = json.loads((layout / "index.json").read_text())["manifests"]
    return json.loads(blob(layout, row["digest"]).read_text())


def test_packed_entries_are_found_where_they_are_unpacked(layout, cache, tmp_path, monkeypatch, capsys):
    first = {path.relative_to(cache): path.read_bytes() for path in cache.glob("*-*/*/*")}
    again = tmp_path / "again.oci"
    assert main(["cache", "pack", str(again)]) == 0
    digest = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]
    assert capsys.readouterr().out.endswith(f", {digest}\n")  # the same entries have the same digest
    unpacked = tmp_path / "another"
    command = ["cache", "unpack", str(layout), "--dir", str(unpacked), "--digest", digest]
    unpacked.mkdir(mode=0o700)
    assert main(command) == 0
    assert {path.relative_to(unpacked): path.read_bytes() for path in unpacked.glob("*-*/*/*")} == first
    assert unpack(unpacked, layout, max_size=LIMIT).present == 2
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(unpacked))
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    build(ADD)
    with pytest.raises(CacheError, match=r"kernels\.oci cannot be written: Directory not empty"):
        pack(cache, layout)


def test_registries_find_what_the_specification_asks_for(layout):
    """See the image layout, the manifest and the descriptor in https://github.com/opencontainers/image-spec."""
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    index, manifest = json.loads((layout / "index.json").read_text()), manifest_of(layout)
    assert (index["schemaVersion"], index["mediaType"]) == (2, "application/vnd.oci.image.index.v1+json")
    assert index["manifests"][0]["mediaType"] == manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert index["manifests"][0]["annotations"] == {"org.opencontainers.image.ref.name": "latest"}
    assert (manifest["schemaVersion"], manifest["artifactType"]) == (2, "application/vnd.jitload.cache.v1")
    assert manifest["config"]["mediaType"] == "application/vnd.oci.empty.v1+json"
    assert {row["mediaType"] for row in manifest["layers"]} == {"application/vnd.jitload.entry.v1.tar+gzip"}
    rows = [*index["manifests"], manifest["config"], *manifest["layers"]]
    for row in rows:
        data = blob(layout, row["digest"]).read_bytes()
        assert (row["digest"], row["size"]) == (f"sha256:{hashlib.sha256(data).hexdigest()}", len(data))
    assert sorted(path.name for path in layout.glob("blobs/sha256/*")) == sorted(row["digest"][7:] for row in rows)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _point_outside(layout: Path) -> None:
    text = (layout / "index.json").read_text()
    (layout / "index.json").write_text(text.replace('"digest": "sha256:', '"digest": "sha256:../../'))


def _forge(layout: Path) -> None:
    """Put a consistent layout of other libraries in place of the signed one."""
    manifest = {**manifest_of(layout), "layers": []}
    data = json.dumps(manifest).encode()
    digest = hashlib.sha256(data).hexdigest()
    blob(layout, f"sha256:{digest}").write_bytes(data)
    index = json.loads((layout / "index.json").read_text())
    index["manifests"][0]["digest"] = f"sha256:{digest}"
    (layout / "index.json").write_text(json.dumps(index))
    for row in manifest_of(layout)["layers"]:
        blob(layout, row["digest"]).unlink()


HARM = {
    "a layer": (lambda layout: _flip(_last_layer(layout)), "does not have the size"),
    "a missing layer": (lambda layout: _last_layer(layout).unlink(), "contains nothing with the digest sha256:"),
    "the manifest": (lambda layout: _flip(blob(layout, f"sha256:{_manifest(layout)}")), "does not have the size"),
    "a path": (_point_outside, "is not a SHA-256 digest"),
    "the index": (lambda layout: (layout / "index.json").write_text('{"manifests": [{}, {}]}'), "2 manifests"),
    "its form": (lambda layout: (layout / "index.json").write_text("[]"), "malformed"),
}  # fmt: skip


def _last_layer(layout: Path) -> Path:
    return blob(layout, manifest_of(layout)["layers"][1]["digest"])


def _manifest(layout: Path) -> str:
    return json.loads((layout / "index.json").read_text())["manifests"][0]["digest"][7:]


def test_every_digest_is_verified(layout, tmp_path):
    for name, (harm, words) in HARM.items():
        copy, cache = tmp_path / "copy.oci", tmp_path / "another"
        shutil.copytree(layout, copy)
        harm(copy)
        with pytest.raises(CacheError, match=f"(?s){words}.*Nothing was added to the cache"):
            unpack(cache, copy, max_size=LIMIT)
        assert not list(cache.glob("*-*")), name
        shutil.rmtree(copy)
    with pytest.raises(CacheError, match="more than 5000 bytes"):
        unpack(tmp_path / "another", layout, max_size=5000)


def test_a_digest_names_the_manifest_that_was_signed(layout, tmp_path):
    signed = f"sha256:{_manifest(layout)}"
    _flip(blob(layout, manifest_of(layout)["layers"][0]["digest"]))
    wrong_digest = f"sha256:{'0' * 64}"
    reasons = {
        signed: "does not have",
        wrong_digest: f"contains nothing with the digest {wrong_digest}",
        "latest": "is not a SHA-256",
    }
    for digest, reason in reasons.items():
        with pytest.raises(CacheError, match=f"{reason}.*Nothing was added"):
            unpack(tmp_path / "another", layout, max_size=LIMIT, digest=digest)
    _forge(layout)
    with pytest.raises(CacheError, match="Nothing was added"):
        unpack(tmp_path / "another", layout, max_size=LIMIT, digest=signed)
    assert unpack(tmp_path / "another", layout, max_size=LIMIT).added == 0  # without a digest, the index decides
