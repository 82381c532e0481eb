"""The group of all commands, and the exit codes that they share."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from jitload import __version__
from jitload.cli.building import compile_command, prebuild_command, run_command
from jitload.cli.cache import cache_group
from jitload.cli.doctor import doctor_command, explain_command
from jitload.cli.inspecting import inspect_command
from jitload.errors import JitLoadError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="jitload %(version)s")
def jitload() -> None:
    """Compile CUDA kernels, look into them, and manage the cache of built ones.

    Exit codes: 0; 1 if something failed or is damaged; 2 for wrong arguments; 130 after Ctrl-C. `jitload run` ends
    with the exit code of the program.
    """


for _command in (
    doctor_command, compile_command, inspect_command, run_command, prebuild_command, cache_group, explain_command
):  # fmt: skip
    jitload.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if words[:1] == ["run"] and "--" in words else len(words)
    try:
        return int(jitload.main(words[:end], prog_name="jitload", standalone_mode=False, obj=words[end + 1 :]) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except JitLoadError as error:
        click.echo("\n".join((f"jitload: {error}", *error.__notes__)), err=True)
        return 1
    except BrokenPipeError:  # `jitload cache list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except click.Abort:  # Ctrl-C
        return 130
