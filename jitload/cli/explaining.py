"""`jitload explain`: what the code of an error means."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from jitload.cli.output import json_option, print_json


@click.command("explain")
@click.argument("code")
@json_option
def explain_command(code: str, *, as_json: bool) -> None:
    """Show what the code of an error means, such as JL-NVRTC, and what to do."""
    sections = read_sections()
    text = sections.get(code.upper())
    if text is None:
        raise click.BadParameter(f"{code!r} is not a code; there are {', '.join(sections)}", param_hint="CODE")
    if as_json:
        print_json({"code": code.upper(), "text": text})
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(text))
    else:
        click.echo(text)


def read_sections() -> dict[str, str]:
    """Return the sections of the manual's page about errors, by their codes."""
    package = Path(__file__).parents[1]
    packaged = package / "troubleshooting.md"  # in a wheel; a checkout has it in docs/
    page = packaged if packaged.is_file() else package.parent / "docs" / "troubleshooting.md"
    parts = re.split(r"^## (.+)\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], map(str.strip, parts[2::2]), strict=True))
    return {title: text for title, text in sections.items() if title.startswith("JL-")}
