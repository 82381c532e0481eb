"""`jitload cache`: lists, ships and clears the cache."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jitload.cache.entry import find_cache_dir, open_cache, read_manifest
from jitload.cli.output import (
    format_age,
    format_entries,
    format_size,
    json_option,
    print_result,
    table_lines,
)
from jitload.settings import parse_size, read_settings

if TYPE_CHECKING:
    from jitload.cache.listing import StoredEntry
    from jitload.cache.prune import PruneResult

_AGE_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _read_size(text: str) -> int:
    """Parse a size such as 2GB into bytes."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from None


def _read_age(text: str) -> float:
    """Parse an age such as 30d into seconds."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", text, re.ASCII)
    if match is None:
        raise click.BadParameter(f"{text!r}: an age is a number with s, m, h, d or w, such as 30d")
    return float(match[1]) * _AGE_UNITS_S[match[2]]


@click.group("cache")
def cache_group() -> None:
    """List, ship and clear the cache."""


@cache_group.command("path")
@json_option
def path_command(*, as_json: bool) -> None:
    """Print the directory of the cache."""
    path = str(find_cache_dir(read_settings()))
    print_result({"dir": path}, [path], as_json=as_json)


@cache_group.command("list")
@json_option
def list_command(*, as_json: bool) -> None:
    """List the entries."""
    from jitload.cache.listing import list_entries

    cache_dir = find_cache_dir(read_settings())
    rows = [_row(entry) for entry in list_entries(cache_dir)]
    table = table_lines(
        ("name", "arch", "age", "size", "key"),
        [(r["name"], r["arch"], format_age(r["age_s"]), format_size(r["size"]), r["key"][:16]) for r in rows],
    )
    total = f"{format_entries(len(rows))}, {format_size(sum(row['size'] for row in rows))}, in {cache_dir}"
    print_result(rows, [*table, total], as_json=as_json)


@cache_group.command("prune")
@click.option("--max-size", metavar="SIZE", type=_read_size, help="Remove entries until no more is left, such as 2GB.")
@click.option("--max-age", metavar="AGE", type=_read_age, help="Remove entries not used for this long, such as 30d.")
@json_option
def prune_command(max_size: int | None, max_age: float | None, *, as_json: bool) -> None:
    """Remove the entries that were used least recently."""
    from jitload.cache.prune import prune

    if max_size is None and max_age is None:
        raise click.UsageError("pass --max-size 2GB, --max-age 30d, or both; to remove all: jitload cache clear")
    _report(prune(open_cache(read_settings()), max_size=max_size, max_age_s=max_age), as_json=as_json)


@cache_group.command("clear")
@json_option
def clear_command(*, as_json: bool) -> None:
    """Remove all entries."""
    from jitload.cache.prune import clear

    _report(clear(open_cache(read_settings())), as_json=as_json)


@cache_group.command("pack")
@click.argument("archive", type=click.Path(path_type=Path))
@json_option
def pack_command(archive: Path, *, as_json: bool) -> None:
    """Write all entries to an archive.

    ARCHIVE is a .tar.gz file, or a new directory without a suffix, for registries and signatures.
    """
    from jitload.cache.archive import pack

    count = pack(find_cache_dir(read_settings()), archive.absolute())
    value = {"packed": count, "archive": str(archive)}
    print_result(value, [f"packed {format_entries(count)} into {archive}"], as_json=as_json)


@cache_group.command("unpack")
@click.argument("archive", type=click.Path(path_type=Path))
@click.option(
    "--max-size",
    metavar="SIZE",
    type=_read_size,
    default="5GB",
    show_default=True,
    help="Do not unpack more than this.",
)
@json_option
def unpack_command(archive: Path, max_size: int, *, as_json: bool) -> None:
    """Add the entries of an archive to the cache.

    Programs that use the cache run the code of its entries. Unpack only archives from a source that you trust.
    """
    from jitload.cache.archive import unpack

    result = unpack(open_cache(read_settings()), archive.absolute(), max_size=max_size)
    text = f"added {format_entries(result.added)}; {result.present} were there already"
    print_result(asdict(result), [text], as_json=as_json)


def _row(entry: StoredEntry) -> dict[str, Any]:
    try:
        manifest = read_manifest(entry.dir)
        archs = manifest["parts"].get("archs") or ["-"]
        created = float(manifest["created"])
    except (OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        archs, created = ["damaged"], time.time()
    return {
        "name": entry.name,
        "arch": ",".join(map(str, archs)) if isinstance(archs, list) else str(archs),
        "age_s": max(time.time() - created, 0.0),
        "unused_s": max(time.time() - entry.used_s, 0.0),
        "size": entry.size,
        "key": entry.digest,
        "dir": str(entry.dir),
    }


def _report(result: PruneResult, *, as_json: bool) -> None:
    value = asdict(result) | {"removed": len(result.removed)}
    in_use = f"; {format_entries(result.in_use)} in use" if result.in_use else ""
    freed, left = format_size(result.freed), format_size(result.left)
    text = f"removed {format_entries(len(result.removed))}, {freed}; {left} left{in_use}"
    print_result(value, [text], as_json=as_json)
