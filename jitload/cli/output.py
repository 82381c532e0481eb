"""What the commands print: tables, JSON, and sizes and ages in units."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


POSITIVE = click.FloatRange(0, min_open=True)


def json_option(command: F) -> F:
    """Add the option `--json` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines with `?` in place of unprintable characters.

    Names from other people's files could contain characters that control the terminal.
    """
    for line in lines:
        click.echo("".join(character if character.isprintable() else "?" for character in line))


def print_result(value: object, lines: Iterable[str], *, as_json: bool) -> None:
    """Print the result of a command: the lines, or the value as JSON, in a line for each item if it is a list."""
    print_lines(map(json.dumps, value if isinstance(value, list) else [value]) if as_json else lines)


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with columns separated by spaces."""
    lines = [columns, *rows] if any(columns) else rows
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def format_entries(count: int) -> str:
    """Return a number of cache entries as text, such as `1 entry` or `3 entries`."""
    return f"{count} {'entry' if count == 1 else 'entries'}"


def format_size(size: int) -> str:
    """Return a number of bytes as text in B, kB, MB or GB."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def format_age(seconds: float) -> str:
    """Return a time span as text in seconds, minutes, hours or days."""
    for unit, factor in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= factor:
            return f"{seconds / factor:.0f} {unit}"
    return f"{seconds:.0f} s"
