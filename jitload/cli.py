"""The command `jitload`: arguments in, text and an exit code out."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitload import __version__
from jitload.cache.directory import find_cache_dir
from jitload.errors import CacheError, JitLoadError
from jitload.settings import parse_size, read_settings

if TYPE_CHECKING:
    from jitload.cache.listing import StoredEntry
    from jitload.cache.prune import PruneResult

_AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code: 0, 1 for a failure or a damaged entry, 2 for wrong arguments."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except JitLoadError as error:
        sys.stderr.write(f"jitload: {error}\n")
        return 1
    except BrokenPipeError:  # `jitload cache list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


# ---- arguments -------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jitload", description="CUDA source in, typed functions out.")
    parser.add_argument("--version", action="version", version=f"jitload {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_cache(commands)
    _add_prebuild(commands)
    return parser


def _add_prebuild(commands: Any) -> None:
    meaning = "build many libraries into the cache ahead of time; no GPU is needed"
    command: argparse.ArgumentParser = commands.add_parser("prebuild", help=meaning, description=meaning)
    command.set_defaults(run=_prebuild)
    command.add_argument(
        "targets",
        nargs="+",
        metavar="TARGET",
        help="requests, as jitload.prebuild takes them: kernels.py or package.module (REQUESTS in it, a list or a "
        "function; another one as kernels.py:NAME), kernels.toml or kernels.json ([[requests]])",
    )
    command.add_argument(
        "--arch",
        action="append",
        type=lambda text: text.split(","),
        metavar="ARCH",
        help="build each request for this architecture, such as sm_90a; may be given several times",
    )
    command.add_argument("-j", "--jobs", type=int, metavar="N", help="processes (default: by cores and memory)")
    command.add_argument("--dir", metavar="DIR", help="another cache than JITLOAD_CACHE_DIR")
    command.add_argument("--bundle", type=Path, metavar="DIR", help="put what was asked for there, too, to be shipped")
    command.add_argument("--pack", type=Path, metavar="FILE", help="and into an archive: .tar.zst, .tar.gz or .tar")
    command.add_argument("-q", "--quiet", action="store_true", help="show no progress, and only failures")
    command.add_argument("--json", action="store_true", help="print a line of JSON for each library")


def _add_cache(commands: Any) -> None:
    cache = commands.add_parser("cache", help="look into the cache, ship it, and clear it up")
    actions = cache.add_subparsers(title="actions", required=True, metavar="ACTION")

    def add(name: str, run: Any, meaning: str) -> argparse.ArgumentParser:
        action: argparse.ArgumentParser = actions.add_parser(name, help=meaning, description=meaning)
        action.add_argument("--dir", default="", metavar="DIR", help="another cache than JITLOAD_CACHE_DIR")
        action.set_defaults(run=run)
        return action

    add("path", _path, "print where the cache is")
    add("list", _list, "list the entries").add_argument("--json", action="store_true", help="as JSON, one row a line")
    add("show", _show, "show what an entry was made from").add_argument("key", help="its key, or the start of it")
    why = add("why", _why, "show in what two entries differ")
    why.add_argument("one", help="a key, or the start of it")
    why.add_argument("other", help="another")
    add("verify", _verify, "check every file of every entry against its SHA-256")
    prune = add("prune", _prune, "remove the entries that were used least recently")
    prune.add_argument("--max-size", type=_size, metavar="SIZE", help="leave this much, such as 2GB")
    prune.add_argument("--max-age", type=_age, metavar="AGE", help="remove what was not used for longer, such as 30d")
    pack = add("pack", _pack, "write entries to an archive: .tar.zst, .tar.gz or .tar")
    pack.add_argument("archive", type=Path)
    pack.add_argument("keys", nargs="*", help="only entries whose keys begin so")
    unpack = add("unpack", _unpack, "add an archive's entries; their code runs when it is loaded, so know its maker")
    unpack.add_argument("archive", type=Path)
    unpack.add_argument("--max-size", type=_size, default="5GB", metavar="SIZE", help="refuse more (default 5GB)")
    add("clear", _clear, "remove all entries")


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _age(text: str) -> float:
    if found := re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", text, re.ASCII):
        return float(found[1]) * _AGES[found[2]]
    raise argparse.ArgumentTypeError(f"{text!r}: an age is a number with s, m, h, d or w, such as 30d")


# ---- prebuild --------------------------------------------------------------------------------------------------


def _prebuild(options: argparse.Namespace) -> int:
    from jitload.prebuilding.api import prebuild
    from jitload.prebuilding.files import read_requests

    if options.dir:
        os.environ["JITLOAD_CACHE_DIR"] = options.dir
    requests = [request for target in options.targets for request in read_requests(target)]
    archs = [arch for several in options.arch for arch in several] if options.arch else None
    done = prebuild(requests, progress=not options.quiet, archs=archs, jobs=options.jobs)
    if options.json:
        _print(json.dumps(asdict(outcome)) for outcome in done.outcomes)
    elif done.failed or not options.quiet:
        _print(str(done).splitlines())
    _ship(options, [Path(outcome.path).parent for outcome in (*done.built, *done.reused)])
    return 1 if done.failed else 0


def _ship(options: argparse.Namespace, entry_dirs: Sequence[Path]) -> None:
    """Put entries where they were asked for besides: into a directory, into an archive."""
    from jitload.cache.archive import fill_bundle, pack_entries

    said = []
    if entry_dirs and options.bundle:
        done = fill_bundle(entry_dirs, options.bundle.absolute())
        said.append(f"added {done.added} entries to {options.bundle}; {done.present} were there already")
    if entry_dirs and options.pack:
        count = pack_entries(entry_dirs, options.pack.absolute())
        said.append(f"packed {count} entries into {options.pack}, {_shown_size(options.pack.stat().st_size)}")
    if not options.quiet and not options.json:
        _print(said)


# ---- actions ---------------------------------------------------------------------------------------------------


def _place(options: argparse.Namespace) -> Path:
    settings = read_settings()
    return find_cache_dir(settings._replace(cache_dir=options.dir) if options.dir else settings)


def _existing(options: argparse.Namespace) -> argparse.Namespace:
    """Refuse a directory that was named and is none: a slip would look like an empty cache."""
    if options.dir and not Path(options.dir).is_dir():
        raise CacheError(f"there is no directory {options.dir}, which --dir names")
    return options


def _present(options: argparse.Namespace) -> Path:
    return _place(_existing(options))


def _trusted(options: argparse.Namespace) -> Path:
    """Return the cache for an action that writes it, after a look at who may write it besides."""
    from jitload.cache.entry import open_cache

    settings = read_settings()
    return open_cache(settings._replace(cache_dir=options.dir) if options.dir else settings)


def _path(options: argparse.Namespace) -> int:
    _print([str(_place(options))])
    return 0


def _list(options: argparse.Namespace) -> int:
    from jitload.cache.listing import list_entries

    rows = [_row(item) for item in list_entries(_present(options))]
    if options.json:
        _print(json.dumps(row) for row in rows)
        return 0
    columns = ("name", "arch", "age", "size", "hits", "key")
    shown = [
        (r["name"], r["arch"], _shown_age(r["age_s"]), _shown_size(r["size"]), str(r["hits"]), r["key"][:16])
        for r in rows
    ]
    widths = [max(map(len, column)) for column in zip(columns, *shown, strict=True)]
    _print("  ".join(map(str.ljust, row, widths)).rstrip() for row in (columns, *shown))
    total = _shown_size(sum(row["size"] for row in rows))
    _print([f"{len(rows)} entries, {total}, in {_place(options)}"])
    return 0


def _row(item: StoredEntry) -> dict[str, Any]:
    try:
        manifest = item.manifest()
        archs = manifest["parts"].get("archs") or ["-"]
        created = float(manifest["created"])
    except (JitLoadError, LookupError, TypeError, ValueError, AttributeError):
        archs, created = ["damaged"], time.time()
    return {
        "name": item.name,
        "arch": ",".join(map(str, archs)) if isinstance(archs, list) else str(archs),
        "age_s": max(time.time() - created, 0.0),
        "unused_s": max(time.time() - item.used_s, 0.0),
        "size": item.size,
        "hits": item.hits,
        "key": item.digest,
        "dir": str(item.dir),
    }


def _show(options: argparse.Namespace) -> int:
    from jitload.cache.listing import find_by_prefix

    item = find_by_prefix(_present(options), options.key)
    manifest = item.manifest()
    row = _row(item)
    _print([f"{item.name}-{item.digest}", f"  in {item.dir}"])
    _print([f"  {_shown_size(item.size)}, built {_shown_age(row['age_s'])} ago, hits {item.hits}"])
    _print(["Made from:", *(f"  {label}: {_text(value)}" for label, value in manifest["parts"].items())])
    headers = [f"  {kept['path']}" for kept in manifest["headers"] if kept["size"] >= 0]
    _print(["Files it read (@0 is the first include directory):", *headers] if headers else [])
    _print(["Files it holds:", *(f"  {name}  {_shown_size(size)}" for name, (size, _) in manifest["files"].items())])
    return 0


def _text(value: object) -> str:
    return " | ".join(", ".join(map(str, value)).splitlines() if isinstance(value, list) else str(value).splitlines())


def _why(options: argparse.Namespace) -> int:
    from jitload.cache.explain import compare_entries
    from jitload.cache.listing import find_by_prefix

    cache_dir = _present(options)
    lines = compare_entries(find_by_prefix(cache_dir, options.one), find_by_prefix(cache_dir, options.other))
    _print(lines or ["They do not differ."])
    return 0


def _verify(options: argparse.Namespace) -> int:
    from jitload.cache.listing import list_damaged, list_entries

    cache_dir = _present(options)
    whole, damaged = 0, []
    for item in list_entries(cache_dir):
        try:
            item.check()
            whole += 1
        except JitLoadError as error:
            damaged.append(str(error))
    renamed = [f"damaged, and renamed earlier: {path}" for path in list_damaged(cache_dir)]
    _print([*damaged, *renamed, f"{whole} entries are whole, {len(damaged)} are damaged"])
    return 1 if damaged else 0


def _prune(options: argparse.Namespace) -> int:
    from jitload.cache.prune import prune

    if options.max_size is None and options.max_age is None:
        raise JitLoadError("say what to remove: --max-size 2GB, --max-age 30d, or both; all of it: jitload cache clear")
    _report(prune(_trusted(_existing(options)), max_size=options.max_size, max_age_s=options.max_age))
    return 0


def _clear(options: argparse.Namespace) -> int:
    from jitload.cache.prune import clear

    _report(clear(_trusted(_existing(options))))
    return 0


def _report(result: PruneResult) -> None:
    in_use = f"; {result.in_use} are in use and stay" if result.in_use else ""
    freed, left = _shown_size(result.freed), _shown_size(result.left)
    _print([f"removed {len(result.removed)} entries, {freed}; {left} are left{in_use}"])


def _pack(options: argparse.Namespace) -> int:
    from jitload.cache.archive import pack

    count = pack(_present(options), options.archive.absolute(), options.keys)
    _print([f"packed {count} entries into {options.archive}, {_shown_size(options.archive.stat().st_size)}"])
    return 0


def _unpack(options: argparse.Namespace) -> int:
    from jitload.cache.archive import unpack

    done = unpack(_trusted(options), options.archive.absolute(), max_size=options.max_size)
    _print([f"added {done.added} entries; {done.present} were there already"])
    return 0


# ---- text ------------------------------------------------------------------------------------------------------


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write("".join(c if c.isprintable() else "?" for c in line) + "\n")
    sys.stdout.flush()


def _shown_size(size: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def _shown_age(seconds: float) -> str:
    for unit, factor in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= factor:
            return f"{seconds / factor:.0f} {unit}"
    return f"{seconds:.0f} s"
