"""The command `jitload`: builds libraries ahead of time, and lists, ships and clears the cache."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from jitload import __version__
from jitload.cache.directory import find_cache_dir
from jitload.errors import CacheError, JitLoadError
from jitload.settings import Settings, parse_size, read_settings

if TYPE_CHECKING:
    from jitload.cache.listing import StoredEntry
    from jitload.cache.prune import PruneResult

_AGE_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DIR_HELP = "use this cache instead of that in JITLOAD_CACHE_DIR"
_KEY_HELP = "the key of an entry, or the beginning of it"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 1 if something failed or is damaged, 2 for wrong arguments."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if words[:1] == ["run"] and "--" in words else len(words)
    options = _parser().parse_args(words[:end])
    options.program_arguments = words[end + 1 :]
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
    parser = argparse.ArgumentParser(
        prog="jitload", description="Build CUDA kernels ahead of time, and manage the cache of built kernels."
    )
    parser.add_argument("--version", action="version", version=f"jitload {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_cache(commands)
    _add_prebuild(commands)
    _add_run(commands)
    return parser


def _add_run(commands: Any) -> None:
    summary = "build a CUDA program from its sources into the cache, and run it; arguments for it come after --"
    command: argparse.ArgumentParser = commands.add_parser("run", help=summary, description=summary)
    command.set_defaults(run=_run_program)
    command.add_argument("sources", nargs="+", metavar="SOURCE", help="source files: .cu, .cpp, .c, .o")
    command.add_argument("--arch", default="native", metavar="ARCH", help="architecture, or several: sm_90a,sm_100a")
    for name, example in (("--cuda-flags", "nvcc, --cuda-flags='-O3 -DN=4'"), ("--ldflags", "the link, --ldflags=-lm")):
        command.add_argument(name, type=_parse_words, default=[], metavar="FLAGS", help=f"options of {example}")
    command.add_argument("--dir", metavar="DIR", help=_DIR_HELP)
    command.add_argument("-v", "--verbose", action="store_true", help="show the commands of the build")


def _add_prebuild(commands: Any) -> None:
    summary = "build many libraries into the cache ahead of time; no GPU is needed"
    command: argparse.ArgumentParser = commands.add_parser("prebuild", help=summary, description=summary)
    command.set_defaults(run=_prebuild)
    command.add_argument(
        "targets",
        nargs="+",
        metavar="TARGET",
        help="requests as for jitload.prebuild: the list or function REQUESTS in kernels.py or package.module, or the "
        "one that kernels.py:NAME names; or the table [[requests]] in kernels.toml or kernels.json",
    )
    command.add_argument(
        "--arch",
        action="append",
        type=lambda text: text.split(","),
        metavar="ARCH",
        help="build all requests for this architecture, such as sm_90a; may be repeated",
    )
    command.add_argument(
        "-j", "--jobs", type=int, metavar="N", help="number of processes (default: by cores and memory)"
    )
    command.add_argument("--dir", metavar="DIR", help=_DIR_HELP)
    command.add_argument(
        "--bundle", type=Path, metavar="DIR", help="copy the libraries to this directory, to ship them"
    )
    command.add_argument(
        "--pack", type=Path, metavar="FILE", help="write the libraries to an archive: .tar.zst, .tar.gz or .tar"
    )
    command.add_argument("-q", "--quiet", action="store_true", help="show failures only")
    command.add_argument("--json", action="store_true", help="print a line of JSON for each library")


def _add_cache(commands: Any) -> None:
    cache = commands.add_parser("cache", help="list, check, ship and clear the cache")
    actions = cache.add_subparsers(title="actions", required=True, metavar="ACTION")

    def add(name: str, run: Any, summary: str) -> argparse.ArgumentParser:
        action: argparse.ArgumentParser = actions.add_parser(name, help=summary, description=summary)
        action.add_argument("--dir", default="", metavar="DIR", help=_DIR_HELP)
        action.set_defaults(run=run)
        return action

    add("path", _path, "print the directory of the cache")
    add("list", _list, "list the entries").add_argument(
        "--json", action="store_true", help="print a line of JSON for each entry"
    )
    add("show", _show, "show what an entry was built from").add_argument("key", help=_KEY_HELP)
    why = add("why", _why, "show why two entries are not the same: what differs in their keys")
    why.add_argument("key", help=_KEY_HELP)
    why.add_argument("other_key", help=_KEY_HELP)
    add("verify", _verify, "compare every file of every entry with its SHA-256")
    prune = add("prune", _prune, "remove the entries that were used least recently")
    prune.add_argument(
        "--max-size",
        type=_parse_size_argument,
        metavar="SIZE",
        help="remove entries until this size is left, such as 2GB",
    )
    prune.add_argument(
        "--max-age",
        type=_parse_age_argument,
        metavar="AGE",
        help="remove entries that were not used for this long, such as 30d",
    )
    pack = add("pack", _pack, "write entries to an archive: .tar.zst, .tar.gz or .tar")
    pack.add_argument("archive", type=Path)
    pack.add_argument("keys", nargs="*", help="only the entries whose keys begin like this")
    unpack = add(
        "unpack", _unpack, "add the entries of an archive; only from a source you trust, because their code will run"
    )
    unpack.add_argument("archive", type=Path)
    unpack.add_argument(
        "--max-size",
        type=_parse_size_argument,
        default="5GB",
        metavar="SIZE",
        help="do not unpack more than this (default 5GB)",
    )
    add("clear", _clear, "remove all entries")


def _parse_size_argument(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _parse_age_argument(text: str) -> float:
    if match := re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", text, re.ASCII):
        return float(match[1]) * _AGE_UNITS_S[match[2]]
    raise argparse.ArgumentTypeError(f"{text!r}: an age is a number with s, m, h, d or w, such as 30d")


def _parse_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


# ---- run -------------------------------------------------------------------------------------------------------


def _run_program(options: argparse.Namespace) -> NoReturn:
    """Replace this process by the program, so that its output, its exit status and its signals are its own."""
    import logging

    from jitload.pipeline import find_or_build
    from jitload.request.request import make_program_request

    if options.dir:
        os.environ["JITLOAD_CACHE_DIR"] = options.dir
    if options.verbose:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
    request = make_program_request(
        options.sources,
        arch=tuple(options.arch.split(",")) if "," in options.arch else options.arch,
        cuda_flags=options.cuda_flags,
        link_flags=options.ldflags,
    )
    program = find_or_build(request, verbose=options.verbose).product
    if not os.access(program, os.X_OK):  # it came from an archive
        program.chmod(0o700)
    sys.stdout.flush()
    try:
        os.execv(program, [str(program), *options.program_arguments])  # noqa: S606  it needs no shell
    except OSError as error:
        raise JitLoadError(
            f"{program} cannot be run: {error.strerror}. If the cache is on a file system that is mounted noexec, set "
            "JITLOAD_CACHE_DIR to a directory elsewhere."
        ) from error


# ---- prebuild --------------------------------------------------------------------------------------------------


def _prebuild(options: argparse.Namespace) -> int:
    from jitload.prebuilding.api import prebuild
    from jitload.prebuilding.files import read_requests

    if options.dir:
        os.environ["JITLOAD_CACHE_DIR"] = options.dir
    requests = [request for target in options.targets for request in read_requests(target)]
    archs = [arch for names in options.arch for arch in names] if options.arch else None
    result = prebuild(requests, progress=not options.quiet, archs=archs, jobs=options.jobs)
    if options.json:
        _print(json.dumps(asdict(outcome)) for outcome in result.outcomes)
    elif result.failed or not options.quiet:
        _print(str(result).splitlines())
    _ship(options, [Path(outcome.path).parent for outcome in (*result.built, *result.reused)])
    return 1 if result.failed else 0


def _ship(options: argparse.Namespace, entry_dirs: Sequence[Path]) -> None:
    """Copy entries to the directory of `--bundle` and to the archive of `--pack`."""
    from jitload.cache.archive import fill_bundle, pack_entries

    lines = []
    if entry_dirs and options.bundle:
        result = fill_bundle(entry_dirs, options.bundle.absolute())
        lines.append(f"added {_entries(result.added)} to {options.bundle}; {result.present} were there already")
    if entry_dirs and options.pack:
        count = pack_entries(entry_dirs, options.pack.absolute())
        lines.append(f"packed {_entries(count)} into {options.pack}, {_format_size(options.pack.stat().st_size)}")
    if not options.quiet and not options.json:
        _print(lines)


# ---- actions ---------------------------------------------------------------------------------------------------


def _settings(options: argparse.Namespace) -> Settings:
    settings = read_settings()
    return settings._replace(cache_dir=options.dir) if options.dir else settings


def _check_dir(options: argparse.Namespace) -> None:
    """Raise an error if `--dir` is not a directory: a misspelled one would look like an empty cache."""
    if options.dir and not Path(options.dir).is_dir():
        raise CacheError(f"--dir={options.dir} is not a directory")


def _readable_cache(options: argparse.Namespace) -> Path:
    _check_dir(options)
    return find_cache_dir(_settings(options))


def _writable_cache(options: argparse.Namespace) -> Path:
    """Return the cache directory for an action that writes it, if other users cannot write it."""
    from jitload.cache.entry import open_cache

    return open_cache(_settings(options))


def _path(options: argparse.Namespace) -> int:
    _print([str(find_cache_dir(_settings(options)))])
    return 0


def _list(options: argparse.Namespace) -> int:
    from jitload.cache.listing import list_entries

    cache_dir = _readable_cache(options)
    rows = [_row(entry) for entry in list_entries(cache_dir)]
    if options.json:
        _print(json.dumps(row) for row in rows)
        return 0
    columns = ("name", "arch", "age", "size", "hits", "key")
    table = [
        columns,
        *(
            (r["name"], r["arch"], _format_age(r["age_s"]), _format_size(r["size"]), str(r["hits"]), r["key"][:16])
            for r in rows
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    _print("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)
    total = _format_size(sum(row["size"] for row in rows))
    _print([f"{_entries(len(rows))}, {total}, in {cache_dir}"])
    return 0


def _row(entry: StoredEntry) -> dict[str, Any]:
    try:
        manifest = entry.manifest()
        archs = manifest["parts"].get("archs") or ["-"]
        created = float(manifest["created"])
    except (JitLoadError, LookupError, TypeError, ValueError, AttributeError):
        archs, created = ["damaged"], time.time()
    return {
        "name": entry.name,
        "arch": ",".join(map(str, archs)) if isinstance(archs, list) else str(archs),
        "age_s": max(time.time() - created, 0.0),
        "unused_s": max(time.time() - entry.used_s, 0.0),
        "size": entry.size,
        "hits": entry.hits,
        "key": entry.digest,
        "dir": str(entry.dir),
    }


def _show(options: argparse.Namespace) -> int:
    from jitload.cache.listing import find_by_prefix

    entry = find_by_prefix(_readable_cache(options), options.key)
    manifest = entry.manifest()
    age = _format_age(_row(entry)["age_s"])
    _print([f"{entry.name}-{entry.digest}", f"  in {entry.dir}"])
    _print([f"  {_format_size(entry.size)}, built {age} ago, hits {entry.hits}"])
    _print(["Built from:", *(f"  {label}: {_format_part(value)}" for label, value in manifest["parts"].items())])
    files = [f"  {row['path']}" for row in manifest["dependencies"] if row["size"] >= 0]
    _print(["Files that were read (@0 is the first include directory):", *files] if files else [])
    _print(["Files in it:", *(f"  {name}  {_format_size(size)}" for name, (size, _) in manifest["files"].items())])
    return 0


def _format_part(value: object) -> str:
    return " | ".join(", ".join(map(str, value)).splitlines() if isinstance(value, list) else str(value).splitlines())


def _why(options: argparse.Namespace) -> int:
    from jitload.cache.explain import compare_entries
    from jitload.cache.listing import find_by_prefix

    cache_dir = _readable_cache(options)
    lines = compare_entries(find_by_prefix(cache_dir, options.key), find_by_prefix(cache_dir, options.other_key))
    _print(lines or ["They are the same."])
    return 0


def _verify(options: argparse.Namespace) -> int:
    from jitload.cache.listing import list_damaged, list_entries

    cache_dir = _readable_cache(options)
    intact, damaged = 0, []
    for entry in list_entries(cache_dir):
        try:
            entry.check()
            intact += 1
        except JitLoadError as error:
            damaged.append(str(error))
    renamed = [f"found damaged earlier, and renamed: {path}" for path in list_damaged(cache_dir)]
    _print([*damaged, *renamed, f"{_entries(intact)} intact, {len(damaged)} damaged"])
    return 1 if damaged else 0


def _prune(options: argparse.Namespace) -> int:
    from jitload.cache.prune import prune

    if options.max_size is None and options.max_age is None:
        raise JitLoadError("pass --max-size 2GB, --max-age 30d, or both; to remove all entries: jitload cache clear")
    _check_dir(options)
    _report(prune(_writable_cache(options), max_size=options.max_size, max_age_s=options.max_age))
    return 0


def _clear(options: argparse.Namespace) -> int:
    from jitload.cache.prune import clear

    _check_dir(options)
    _report(clear(_writable_cache(options)))
    return 0


def _report(result: PruneResult) -> None:
    in_use = f"; {_entries(result.in_use)} in use" if result.in_use else ""
    freed, left = _format_size(result.freed), _format_size(result.left)
    _print([f"removed {_entries(len(result.removed))}, {freed}; {left} left{in_use}"])


def _pack(options: argparse.Namespace) -> int:
    from jitload.cache.archive import pack

    count = pack(_readable_cache(options), options.archive.absolute(), options.keys)
    _print([f"packed {_entries(count)} into {options.archive}, {_format_size(options.archive.stat().st_size)}"])
    return 0


def _unpack(options: argparse.Namespace) -> int:
    from jitload.cache.archive import unpack

    result = unpack(_writable_cache(options), options.archive.absolute(), max_size=options.max_size)
    _print([f"added {_entries(result.added)}; {result.present} were there already"])
    return 0


# ---- output ----------------------------------------------------------------------------------------------------


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write("".join(c if c.isprintable() else "?" for c in line) + "\n")
    sys.stdout.flush()


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _format_size(size: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def _format_age(seconds: float) -> str:
    for unit, factor in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= factor:
            return f"{seconds / factor:.0f} {unit}"
    return f"{seconds:.0f} s"
