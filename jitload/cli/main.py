"""The command `jitload`, which groups all other commands, and their common exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from jitload import __version__
from jitload.cli.building import compile_command, prebuild_command, record_command, tune_command
from jitload.cli.cache import cache_group
from jitload.cli.doctor import doctor_command, explain_command
from jitload.cli.inspecting import inspect_command
from jitload.cli.judging import judge_command
from jitload.errors import JitLoadError
from jitload.words import in_options

# What messages contain in place of arguments of Python's functions and of advice for Python (`words.Argument`).
_OPTIONS = {
    "arch": "--arch ",
    "functions": "--functions ",
    "extra_cflags": "--cuda-flags=",
    "extra_cuda_cflags": "--cuda-flags=",
    "extra_include_paths": "--cuda-flags=-I",
    "extra_ldflags": "--ldflags=",
    "host kind": "or export them with TVM_FFI_DLL_EXPORT_TYPED_FUNC",
    "inline": "",
    "instantiation": "add `template __global__ void {1}<float>(…);`",
    "kernel name": "leave out its namespace and its template arguments",
    "load_inline()": "`jitload compile`",
    "no source": "the files are empty",
    "source file": "build one from it first: jitload compile {0}",
}


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="jitload %(version)s")
def jitload() -> None:
    """Compile and inspect CUDA kernels, and manage the cache of built kernels.

    Exit codes: 0 on success; 1 if something failed or is damaged; 2 for wrong arguments; 130 after Ctrl-C.
    `jitload record` ends with the exit code of the program that it runs, and `jitload judge` with that of the first
    candidate that is not ok.
    """


for _command in (
    doctor_command, compile_command, inspect_command, record_command, prebuild_command, cache_group,
    explain_command, tune_command, judge_command,
):  # fmt: skip
    jitload.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `jitload` and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if words[:1] == ["record"] and "--" in words else len(words)
    try:
        return int(jitload.main(words[:end], prog_name="jitload", standalone_mode=False, obj=words[end + 1 :]) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except JitLoadError as error:
        click.echo(f"{error.code}: `jitload explain {error.code}` says what to do", err=True)
        click.echo(f"jitload: {in_options(error, _OPTIONS)}", err=True)
        return 1
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # no message if the reader ends, as in `… list | head`
            is_cwd = isinstance(error, FileNotFoundError)  # without a name, this is about a directory that is gone
            unnamed = "the working directory" if is_cwd else "the output cannot be written"
            subject = unnamed if error.filename is None else error.filename
            click.echo(f"jitload: {subject}: {error.strerror or error}", err=True)
        _discard_output()
        return 1
    except click.Abort:  # Ctrl-C
        return 130


def _discard_output() -> None:
    """Discard output that cannot be written. Otherwise, Python would try to write this output again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
