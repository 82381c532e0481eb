"""`jitload tune`: measures variants of kernels, and adds measurements up."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import click

from jitload.cli.output import dir_option, json_option, print_lines
from jitload.errors import JitLoadError


@click.command("tune")
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("-o", "--output", default="tuned.json", show_default=True, help="The file; measurements are added to it.")
@click.option("--merge", is_flag=True, help="TARGETs are files of measurements, such as those of several GPUs.")
@click.option("--seconds", default=5.0, show_default=True, help="Roughly how long to measure for each key.")
@click.option("-j", "--jobs", type=click.IntRange(1), help="Processes, each with a GPU of its own (default: this one).")
@dir_option
@json_option
def tune_command(targets: tuple[str, ...], output: str, **options: Any) -> int:
    """Measure the variants of kernels, and save the measurements.

    A TARGET is a file or a module with requests, as for `jitload prebuild`. A request has jobs under the key "tune":
    [{"function": "scale", "args": ["float32[4096]", "float32[4096]", 2.0]}].
    """
    from jitload.cli.building import prepare
    from jitload.measuring.tuning import Tuning
    from jitload.prebuilding.files import read_requests
    from jitload.tuning.jobs import gpu_executor, tune_requests

    prepare(options["directory"], is_verbose=False)
    if options["merge"]:
        found = Tuning([row for target in targets for row in Tuning.load(target).rows])
        found.save(output)
    else:
        requests = [request for target in targets for request in read_requests(target)]
        with gpu_executor(options["jobs"]) if options["jobs"] else nullcontext() as executor:
            found = tune_requests(requests, executor, output=output, seconds=options["seconds"])
    if not found.choices:
        raise JitLoadError(f"no variant could be measured\n{found}")
    if options["as_json"]:
        click.echo(found.to_json(), nl=False)
    else:
        print_lines([*str(found).splitlines(), f"{output}: {len(Tuning.load(output).choices)} choices"])
    return 0
