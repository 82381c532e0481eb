"""Splits a compilation by nvcc into its commands, so that ninja compiles host and device code in parallel.

`nvcc --dryrun` prints the commands that nvcc would run one after another. The commands are kept in the cache as a
template, in which the source file has a fixed name and the intermediate files are named after the source file. If nvcc
prints anything that this module does not know, there is no template, and nvcc runs its commands itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from jitload.building.ninja import Step
from jitload.toolchain.cuda import Nvcc
from jitload.toolchain.fingerprints import file_state, remembered
from jitload.toolchain.host import Compiler
from jitload.toolchain.nvcc import run_nvcc

_SOURCE = "jitload_unit.cu"
_END_OF_OPENING = "jitload_end_of_opening"  # a variable that the source declares after its includes
_FORMAT = "4"  # the version of the template's format in the cache
_INTERMEDIATE = re.compile(r"\bjitload_unit\.(?!cu\b)")  # in the name of an intermediate file
_VARIABLE = re.compile(r"#\$ (\w+)=(.*)")
_SKIPPED = ("rm ", "-- Filter Dependencies --")
_VERBATIM = re.compile(r"-[DUI].|/")  # options and paths that nvcc must pass on unchanged
_KEEP = re.compile(r"--?(?:keep(?!-device)|save-temps)")
_OUTPUT_OPTIONS = {"cudafe++": "--gen_c_file_name", "fatbinary": "--embedded-fatbin="}
_log = logging.getLogger(__name__)


class NvccCommand(NamedTuple):
    """A command that nvcc runs, with `jitload_unit.cu` in place of the name of the source file.

    `output` is the file that the command makes, and `inputs` are the files that it reads.
    """

    words: tuple[str, ...]
    output: str
    inputs: tuple[str, ...]


Template = tuple[NvccCommand, ...]


def find_template(
    nvcc: Nvcc, compiler: Compiler, options: Sequence[str], work_dir: Path, cache_dir: Path
) -> Template | None:
    """Return the commands that nvcc runs to compile a source.

    Return None if the output of `nvcc --dryrun` is not understood. Relative paths in the options refer to `work_dir`.
    The commands are kept in the cache.
    """
    states = map(file_state, (nvcc.path, compiler.path))
    words = (_FORMAT, nvcc.identity, *states, *compiler.command, *options)
    rows = json.loads(remembered(words, cache_dir, lambda: json.dumps(_ask(nvcc, options, work_dir))))
    if isinstance(rows, str):
        _log.debug(
            "nvcc compiles as a whole, because jitload does not understand this in the output of --dryrun: %s", rows
        )
        return None
    return tuple(NvccCommand(tuple(words), output, tuple(inputs)) for words, output, inputs in rows)


def template_steps(template: Template, file: str, header: Path | None = None) -> tuple[Step, ...]:
    """Return steps that run the nvcc commands of a template for a source file. The last step makes the object file.

    `header` is a precompiled header with the text that `read_opening` returned.
    """

    def name(text: str) -> str:
        return text.replace(_SOURCE, file)

    steps = [
        Step(
            output=name(command.output),
            command=tuple(map(name, command.words)),
            inputs=tuple(map(name, command.inputs)),
        )
        for command in template
    ]
    if header:
        preprocess, split = host_commands(template)
        index = template.index(split)
        steps[index] = _renamed(steps[index], name(preprocess.output))
        steps[-1] = _with_header(steps[-1], name(split.output), header)
    return tuple(steps)


def module_id(file: str, parts: Sequence[str]) -> str:
    """Return the module id of a source file. The id distinguishes internal symbols of different files.

    The id has the form of nvcc's own ids. `parts` are texts that distinguish the file from others of the same name.
    """
    digest = hashlib.sha256("\0".join((file, *parts)).encode(errors="surrogateescape")).hexdigest()
    name = re.sub(r"\W", "_", file)
    return f"_{digest[:8]}_{len(name)}_{name}_{digest[8:16]}"


def module_id_file(file: str) -> str:
    """Return the name of the file from which nvcc's commands read the module id of the source file `file`."""
    return f"{file}.module_id"


# ---- the opening of the host's C++ -------------------------------------------------------------------------------


def host_commands(template: Template) -> tuple[NvccCommand, NvccCommand]:
    """Return the two commands that make the host's C++ from a source: the preprocessor's, and that of `cudafe++`."""
    split = next(command for command in template if Path(command.words[0]).name == "cudafe++")
    return next(command for command in template if command.output in split.inputs), split


def write_opening_source(includes: str, work_dir: Path) -> None:
    """Write the source from which the `host_commands` make the opening of all sources that begin with `includes`."""
    (work_dir / _SOURCE).write_text(f"{includes}extern int {_END_OF_OPENING};\n")
    (work_dir / module_id_file(_SOURCE)).write_text(module_id(_SOURCE, ()))


def read_opening(command: Sequence[str], work_dir: Path) -> bytes:
    """Return the opening, and remove the files that the `host_commands` made. `command` is the second of them.

    nvcc includes `cuda_runtime.h` in front of every source. The host's C++ of all sources that begin with the same
    `#include` lines therefore begins with the same text, if the preprocessed sources have the same name.
    """
    text = (work_dir / _output_of(command)).read_bytes()
    for path in work_dir.glob(f"{_SOURCE}*"):
        path.unlink()
    return text[: text.rindex(b"\n# ", 0, text.index(_END_OF_OPENING.encode())) + 1]


def _renamed(step: Step, preprocessed: str) -> Step:
    """Return the step of `cudafe++`, which reads a preprocessed source with the name that the opening has."""
    script = f'sed -i \'1s/".*"/"{_SOURCE}"/\' {shlex.quote(preprocessed)} && exec {shlex.join(step.command)}'
    return replace(step, command=("/bin/sh", "-c", script))


def _with_header(step: Step, source: str, header: Path) -> Step:
    """Return the step that compiles the host's C++. If the C++ begins with the header's text, the header is used."""
    size, rest = header.stat().st_size, f"{source}.rest.cpp"
    command = (*(rest if word == source else word for word in step.command), "-include", str(header))
    script = (
        f"if cmp -s -n {size} {shlex.join((source, str(header)))}; then "
        f"tail -c +{size + 1} {shlex.quote(source)} >{shlex.quote(rest)} && exec {shlex.join(command)}; "
        f"else exec {shlex.join(step.command)}; fi"
    )
    return replace(step, command=("/bin/sh", "-c", script))


# ---- what nvcc prints --------------------------------------------------------------------------------------------


def _ask(nvcc: Nvcc, options: Sequence[str], work_dir: Path) -> Template | str:
    """Run `nvcc --dryrun`, and return the template.

    If a part of the output is not understood, return a text that describes this part.
    """
    # With --keep, the names of intermediate files are those of the source and the architecture, without random numbers.
    command = [str(nvcc.path), "--dryrun", *options, "--keep", "-c", _SOURCE, "-o", f"{_SOURCE}.o"]
    try:
        return _parse(run_nvcc(command, directory=work_dir), options)
    except _NotUnderstoodError as reason:
        return str(reason)


class _NotUnderstoodError(Exception):
    """The output of `nvcc --dryrun` has something unknown; the message says what."""


def _parse(output: str, options: Sequence[str]) -> Template:
    lines = output.splitlines()
    if unknown := next((line for line in lines if not line.startswith("#$ ")), None):
        raise _NotUnderstoodError(f"the line {unknown!r}")
    variables = {match[1]: match[2] for line in lines if (match := _VARIABLE.fullmatch(line))}
    texts = [line[3:] for line in lines if not _VARIABLE.fullmatch(line)]
    commands = [_read_words(text, variables) for text in texts if not text.startswith(_SKIPPED)]
    template = tuple(_link_inputs(commands))
    kinds = [Path(words[0]).name for words in commands]
    if (
        kinds.count("cudafe++") != 1
        or not {"cicc", "ptxas", "fatbinary"} <= {*kinds}
        or template[-1].output != f"{_SOURCE}.o"
    ):
        raise _NotUnderstoodError(f"the programs {', '.join(kinds)}")
    module_ids = (word for words in commands for word in words if word.endswith("module_id"))
    if strange := next((name for name in module_ids if name != module_id_file(_SOURCE)), None):
        raise _NotUnderstoodError(f"the file {strange!r}")
    preprocessing = next(words for words in commands if "-E" in words)
    for option in options:
        if _KEEP.match(option):
            raise _NotUnderstoodError(f"the option {option!r}, whose files jitload would remove")
        if _VERBATIM.match(option) and not {option, option[2:]} & {*preprocessing}:
            raise _NotUnderstoodError(f"the option {option!r}, which is passed on in another form")
    return template


def _read_words(text: str, variables: dict[str, str]) -> list[str]:
    """Return a command that nvcc printed, as words for a template.

    The program gets its full path. The names of intermediate files begin with the source's name. A preprocessor command
    also writes a depfile.
    """
    try:
        words = [word.replace("\\$", "$") for word in shlex.split(text)]
    except ValueError as error:
        raise _NotUnderstoodError(f"{text!r}: {error}") from error
    program = re.sub(r"^\$(\w+)", lambda match: variables.get(match[1], ""), words[0])
    path = program if "/" in program else shutil.which(program, path=variables.get("PATH", ""))
    if path is None:
        raise _NotUnderstoodError(f"the program {program!r}")
    if strange := next((word for word in words if "tmpxft" in word), None):  # with the option --threads
        raise _NotUnderstoodError(f"the temporary file {strange!r}")
    words = [path, *(_INTERMEDIATE.sub(f"{_SOURCE}.", word) for word in words[1:])]
    if "-E" in words:
        words += ["-MD", "-MF", f"{_output_of(words)}.d"]
    # jitload has written the file with the module id, which cicc reads. If cudafe++ wrote this file, cicc could not run
    # in parallel with cudafe++.
    return [word for word in words if word != "--gen_module_id_file"]


def _output_of(words: Sequence[str]) -> str:
    option = _OUTPUT_OPTIONS.get(Path(words[0]).name, "-o")
    for word, following in zip(words, (*words[1:], ""), strict=True):
        if word == option:
            return following
        if option.endswith("=") and word.startswith(option):
            return word.removeprefix(option)
    raise _NotUnderstoodError(f"the command {Path(words[0]).name}, which has no option {option}")


def _link_inputs(commands: Sequence[Sequence[str]]) -> Iterator[NvccCommand]:
    """Yield an `NvccCommand` for each command, with the files that the command reads.

    These are the files that the command's words name. The last command also reads each output that no other command
    reads.
    """
    outputs: list[str] = []
    unread: dict[str, None] = {}
    for words in commands:
        output = _output_of(words)
        inputs = [name for name in (_SOURCE, *outputs) if any(word.endswith(name) for word in words if word != output)]
        if words is commands[-1]:
            inputs = [*dict.fromkeys((*inputs, *unread))]
        for name in inputs:
            unread.pop(name, None)
        outputs.append(output)
        unread[output] = None
        yield NvccCommand(tuple(words), output, tuple(inputs))
