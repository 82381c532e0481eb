"""`jitload tune`: measures variants of kernels, and adds measurements up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jitload.cli.output import dir_option, json_option, print_lines
from jitload.errors import JitLoadError


@click.command("tune")
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("-o", "--output", default="tuned.json", show_default=True, help="The file; measurements are added to it.")
@click.option("--merge", is_flag=True, help="TARGETs are files of measurements, such as those of several GPUs.")
@click.option("--seconds", type=float, help="Roughly how long to measure for each key (default: 5).")
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
    from jitload.tuning.jobs import tune_requests

    prepare(options["directory"], is_verbose=False)
    if options["merge"]:
        found = Tuning([row for target in targets for row in Tuning.load(target).rows])
    else:
        seconds = {} if options["seconds"] is None else {"seconds": options["seconds"]}
        found = tune_requests([request for target in targets for request in read_requests(target)], **seconds)
    if not found.choices:
        raise JitLoadError(f"no variant could be measured\n{found}")
    path = found.save(Path(output))
    if options["as_json"]:
        click.echo(found.to_json(), nl=False)
    else:
        print_lines([*str(found).splitlines(), f"{path}: {len(Tuning.load(path).choices)} choices"])
    return 0
