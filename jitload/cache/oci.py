"""Writes and reads entries as an OCI image layout: a directory that registries and signing tools understand.

oci-layout, index.json, and below blobs/sha256/ a manifest, an empty configuration, and an archive for each entry
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_OCI_TYPE, _OWN_TYPE = "application/vnd.oci.{}.v1+json", "application/vnd.jitload.{}"
_MAX_JSON = 64 << 20
_TITLE, _TAG = "org.opencontainers.image.title", "org.opencontainers.image.ref.name"


def write_layout(archives: Iterable[tuple[str, bytes]], directory: Path) -> None:
    """Write (name, gzipped archive) pairs to a new directory, under the tag `latest`."""
    (directory / "blobs" / "sha256").mkdir(parents=True)
    entry_type = _OWN_TYPE.format("entry.v1.tar+gzip")
    layers = [{**_write_blob(directory, data, entry_type), "annotations": {_TITLE: name}} for name, data in archives]
    head = {"schemaVersion": 2, "mediaType": _OCI_TYPE.format("image.manifest")}
    config = _write_blob(directory, b"{}", _OCI_TYPE.format("empty"))
    manifest = {**head, "artifactType": _OWN_TYPE.format("cache.v1"), "config": config, "layers": layers}
    row = _write_blob(directory, json.dumps(manifest).encode(), head["mediaType"]) | {"annotations": {_TAG: "latest"}}
    index = {"schemaVersion": 2, "mediaType": _OCI_TYPE.format("image.index"), "manifests": [row]}
    (directory / "index.json").write_text(json.dumps(index, indent=1))
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def _write_blob(directory: Path, data: bytes, media_type: Any) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    (directory / "blobs" / "sha256" / digest).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def manifest_digest(directory: Path) -> str:
    """Return the digest of a layout's manifest, `sha256:…`, which covers all entries, and which a signature covers.

    Raises:
        OSError, ValueError: The directory is not a layout with one manifest.
    """
    with (directory / "index.json").open("rb") as file:
        rows = json.loads(file.read(_MAX_JSON))["manifests"]
    if len(rows) != 1:
        raise ValueError(f"its index.json has {len(rows)} manifests instead of one")
    return str(rows[0]["digest"])


def read_layout(directory: Path, digest: str = "") -> Iterator[bytes]:
    """Yield the archives of a layout after comparing each with its size and digest.

    If `digest` is not empty, it is that of the manifest to read, whatever the index says.

    Raises:
        OSError, ValueError: A file is missing, is too large, or does not have its digest.
    """
    try:
        manifest = json.loads(_read_blob(directory, digest or manifest_digest(directory), _MAX_JSON))
        for row in manifest["layers"]:
            yield _read_blob(directory, row["digest"], row["size"])
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"its index or manifest is malformed ({error})") from error


def _read_blob(directory: Path, digest: str, max_size: int) -> bytes:
    algorithm, _, value = digest.partition(":")
    if algorithm != "sha256" or len(value) != 64 or not value.isalnum():
        raise ValueError(f"{digest[:80]!r} is not a SHA-256 digest, sha256:…")
    try:
        with (directory / "blobs" / algorithm / value).open("rb") as file:
            data = file.read(max_size + 1)
    except FileNotFoundError as error:
        raise ValueError(f"it contains nothing with the digest {digest}") from error
    if len(data) > max_size or hashlib.sha256(data).hexdigest() != value:
        raise ValueError(f"the file {algorithm}/{value} does not have the size and digest of its name")
    return data
