"""`jitload compile`, `record`, `prebuild` and `tune`: build one library or many, and measure variants."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from jitload.cli.inspecting import kernel_rows, kernel_table
from jitload.cli.output import POSITIVE, format_entries, format_size, json_option, print_lines, print_result
from jitload.errors import JitLoadError

if TYPE_CHECKING:
    from jitload.prebuilding.api import Prebuilt

F = TypeVar("F", bound=Callable[..., Any])


def _flags_option(name: str, text: str) -> Callable[[F], F]:
    return click.option(name, default="", metavar="FLAGS", type=_split_flags, help=text)


def _split_flags(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from None


def _archs(arch: str) -> str | tuple[str, ...]:
    return tuple(arch.split(",")) if "," in arch else arch


# ---- compile -----------------------------------------------------------------------------------------------------


@click.command("compile")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("-o", "--output", default="", help="The library to write; by default, NAME.so.")
@click.option("--functions", default="", metavar="F,G", help="Export these functions and kernels alone.")
@click.option("--arch", default="native", show_default=True, help="Architecture, or several: sm_90a,sm_100a.")
@_flags_option("--cuda-flags", "Compiler options: --cuda-flags='-O3 -DN=4'.")
@_flags_option("--ldflags", "Linker options: --ldflags=-lcublas.")
@click.option("-v", "--verbose", is_flag=True, help="Show the stages and commands of the build.")
@json_option
def compile_command(sources: tuple[str, ...], output: str, **options: Any) -> None:
    """Compile source files to a library.

    The suffix of a source says what it contains, as for `jitload.load`. `jitload.load_module` loads the library.
    """
    from jitload.api import build, load_module

    path = build(
        Path(sources[0]).stem,
        sources=list(sources),
        functions=options["functions"].replace(",", " ").split() or None,
        arch=_archs(options["arch"]),
        extra_cuda_cflags=options["cuda_flags"],
        extra_ldflags=options["ldflags"],
        output=output or f"{Path(sources[0]).stem}.so",
        verbose=options["verbose"],
    )
    module = load_module(path)
    rows = kernel_rows(module)
    kernels = {row["name"] for row in rows}
    host_functions = [f"{name}: a host function" for name in module if name not in kernels]
    lines = [*kernel_table(rows), *host_functions, f"{path}, {format_size(Path(path).stat().st_size)}"]
    print_result({"path": path, "kernels": rows}, lines, as_json=options["as_json"])
    if not len(module):
        click.echo("The library exports no functions. Name the C++ functions to export: --functions f,g", err=True)


# ---- record ------------------------------------------------------------------------------------------------------


@click.command("record")
@click.option("-o", "--output", default="record.json", show_default=True, help="The file; calls are added to it.")
@click.pass_obj
def record_command(command: Sequence[str], /, output: str) -> None:
    """Run a program, and record which libraries it loads.

    The program comes after --, as in `jitload record -- python serve.py`. It replaces the process of `jitload record`.
    `jitload prebuild --from` builds what is in the record.
    """
    if not command:
        raise click.UsageError("there is no program to run: jitload record -- python serve.py")
    environment = {**os.environ, "JITLOAD_RECORD": str(Path(output).absolute())}
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606  the program needs no shell
    except OSError as error:
        raise JitLoadError(f"{command[0]} cannot be run: {error.strerror}") from error


# ---- prebuild ----------------------------------------------------------------------------------------------------


@click.command("prebuild")
@click.argument("targets", nargs=-1, metavar="TARGET...")
@click.option(
    "--from", "records", multiple=True, metavar="FILE", help="Build what `jitload record` wrote to this file."
)
@click.option(
    "--arch", "archs", multiple=True, help="Build requests that name none for this architecture; may be repeated."
)
@click.option("-j", "--jobs", type=click.IntRange(1), metavar="N", help="Processes (default: by cores and memory).")
@click.option("--bundle", type=click.Path(path_type=Path), help="Copy the libraries to this directory, to ship them.")
@click.option("--pack", type=click.Path(path_type=Path), help="Write them to an archive, a .tar.gz or a directory.")
@click.option("-q", "--quiet", is_flag=True, help="Show failures only.")
@json_option
def prebuild_command(targets: tuple[str, ...], records: tuple[str, ...], archs: tuple[str, ...], **options: Any) -> int:
    """Build many libraries into the cache.

    No GPU is needed. A TARGET is a file or a module with requests for jitload.prebuild. In kernels.py or
    package.module, REQUESTS is a list of requests or a function that returns such a list. For another name than
    REQUESTS, write kernels.py:NAME.
    """
    if not (targets or records):
        raise click.UsageError("there is nothing to build: name a TARGET, or a record with --from")

    from jitload.cache.archive import check_archive_name
    from jitload.prebuilding.api import prebuild
    from jitload.prebuilding.files import read_requests

    if options["pack"]:
        check_archive_name(options["pack"].name)
    requests = [request for target in (*targets, *records) for request in read_requests(target)]
    names = [name for arch in archs for name in arch.split(",")]
    result = prebuild(requests, progress=not options["quiet"], archs=names or None, jobs=options["jobs"])
    summary = str(result).splitlines() if result.failed or not options["quiet"] else []
    print_result([asdict(outcome) for outcome in result.outcomes], summary, as_json=options["as_json"])
    lines = _ship(result, options)
    if not options["quiet"] and not options["as_json"]:
        print_lines(lines)
    return 1 if result.failed else 0


def _ship(result: Prebuilt, options: dict[str, Any]) -> list[str]:
    """Copy the entries to the directory of `--bundle` and to the archive of `--pack`. Return lines to print."""
    from jitload.cache.archive import pack_entries

    lines, bundle, archive, entry_dirs = [], options["bundle"], options["pack"], result.entry_dirs()
    if entry_dirs and bundle:
        copied = result.fill_bundle(bundle)
        lines.append(f"added {format_entries(copied.added)} to {bundle}; {copied.present} were there already")
    if entry_dirs and archive:
        lines.append(f"packed {format_entries(pack_entries(entry_dirs, archive.absolute()))} into {archive}")
    return lines


@click.command("tune")
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("-o", "--output", default="tuned.json", show_default=True, help="The file; measurements are added to it.")
@click.option("--seconds", type=POSITIVE, default=5.0, show_default=True, help="Roughly how long to measure each key.")
@click.option("--all-gpus", is_flag=True, help="Run the jobs in several processes, each with a GPU of its own.")
def tune_command(targets: tuple[str, ...], output: str, **options: Any) -> int:
    """Measure the variants of kernels, and save the measurements.

    A TARGET is a file or a module with requests, as for `jitload prebuild`. A request has jobs under the key "tune":
    [{"function": "scale", "args": ["float32[4096]", "float32[4096]", 2.0]}].
    """
    from jitload.prebuilding.files import read_requests
    from jitload.tuning.jobs import gpu_executor, tune_requests

    requests = [request for target in targets for request in read_requests(target)]
    with gpu_executor() if options["all_gpus"] else nullcontext() as executor:
        tuning = tune_requests(requests, executor, output=output, seconds=options["seconds"])
    if not tuning.choices:
        raise JitLoadError(f"no variant could be measured\n{tuning}")
    print_lines([*str(tuning).splitlines(), f"{len(tuning.choices)} choices, saved in {output}"])
    return 0
