"""`jitload judge`: say what generated kernels are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jitload.cli.output import POSITIVE, json_option, print_lines
from jitload.errors import JitLoadError

_SUFFIXES = (".cu", ".cpp", ".py")
_EXIT_CODES = {"ok": 0, "compile": 10, "load": 11, "launch": 12, "memory": 13, "wrong": 14, "hang": 15, "cheat": 16}


@click.command("judge")
@click.argument("candidates", nargs=-1, required=True, metavar="CANDIDATE...", type=click.Path(path_type=Path))
@click.option("--against", required=True, metavar="FILE", help="A Python file with the reference and its inputs.")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Number of candidates to judge at a time.")
@click.option("--timeout", type=POSITIVE, default=20.0, show_default=True, help="Seconds that its calls may take.")
@click.option("--memory", default="4GB", show_default=True, help="Memory that a candidate may use.")
@json_option
def judge_command(candidates: tuple[Path, ...], against: str, workers: int | None, **options: Any) -> int:
    """Say whether kernels are right and fast, or what is wrong with them.

    A CANDIDATE is a file, or a directory with files named .cu, .cpp and .py. The reference file defines
    reference(...), inputs(), and for kernels FUNCTIONS, the argument functions= of load_inline. A KernelBench problem,
    with candidates that define ModelNew, works as it is.

    The exit code is that of the first candidate that is not ok: 10 if it does not compile, 11 if it cannot be loaded,
    12 if a call fails, 13 for its memory, 14 for a wrong result, 15 if it hangs, and 16 if it cheats.
    """
    from jitload.judging.judge import Judge

    as_json, failed = options.pop("as_json"), None
    files: list[Path] = []
    for path in candidates:
        files += sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES) if path.is_dir() else [path]
    if not files:
        raise JitLoadError("there are no candidates, which are files named .cu, .cpp or .py")
    with Judge(reference=against, **options) as judge:
        for verdict in judge.map(files, workers=workers, progress=not as_json):
            print_lines([verdict.to_json() if as_json else str(verdict)])
            failed = failed or (None if verdict.ok else verdict)
    if failed is None:
        return 0
    click.echo(f"{failed.name}: {failed.stage}: {failed.reason}", err=True)
    return _EXIT_CODES[failed.stage]
