"""C++ text and cubins in, shared library out: ninja and the host compiler, in one directory."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jitload.errors import CompileError, Diagnostic, ToolchainError

_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^\n:]+):(?P<line>\d+):(?:\d+:)? (?P<severity>fatal error|error|warning|note): (?P<message>.*)$",
    re.MULTILINE,
)
_PATIENCE = 5.0  # seconds that a compiler has to end and to remove what it wrote
_log = logging.getLogger(__name__)
_running: set[subprocess.Popen[str]] = set()

# Every library of ours: nothing of it is visible but its exports, it is bound when it is loaded (an unknown symbol
# is an error then and not at the first call), and it stays loaded. What it needs of libc and tvm-ffi it finds in the
# process: naming libc to the linker takes as long as all the rest of the link.
COMPILE_FLAGS = ("-O0", "-pipe", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-w")
LINK_FLAGS = ("-shared", "-s", "-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,-z,noexecstack", "-nostartfiles", "-nodefaultlibs")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of a build: what it makes, from which files, and which files it reads besides."""

    output: str
    command: tuple[str, ...]
    inputs: tuple[str, ...]
    reads: tuple[str, ...] = ()


def compile_step(
    compiler: Sequence[str], flags: Sequence[str], source: str, output: str, *, reads: tuple[str, ...] = ()
) -> Step:
    """Return the step that compiles one source to an object."""
    command = (*compiler, *flags, "-c", source, "-o", output)
    return Step(output=output, command=command, inputs=(source,), reads=reads)


def link_step(compiler: Sequence[str], objects: tuple[str, ...], output: str) -> Step:
    """Return the step that links objects to a shared library that needs nothing but libc."""
    command = (*compiler, *objects, "-o", output, *LINK_FLAGS)
    return Step(output=output, command=command, inputs=objects)


def write_ninja(work_dir: Path, steps: Sequence[Step]) -> None:
    """Write `build.ninja` for the steps."""
    (work_dir / "build.ninja").write_bytes(os.fsencode(ninja_text(steps)))


def ninja_text(steps: Sequence[Step]) -> str:
    """Return the text of `build.ninja` for the steps."""
    lines = []
    for number, step in enumerate(steps):
        inputs = " ".join(map(_ninja_path, step.inputs))
        command = _shell_line(step.command).replace("$", "$$")
        reads = " | " + " ".join(map(_ninja_path, step.reads)) if step.reads else ""
        lines += [f"rule step{number}", f"  command = {command}", f"  description = {step.output}"]
        lines += [f"build {_ninja_path(step.output)}: step{number} {inputs}{reads}"]
    return "\n".join([*lines, ""])


def together_text(builds: Sequence[tuple[Path, Sequence[Step]]]) -> str:
    """Return the text of a `build.ninja` that runs the steps of several builds, each in its directory, in one go."""
    lines = []
    for number, (work_dir, steps) in enumerate(builds):
        commands = (("cd", str(work_dir)), *(step.command for step in steps))
        lines += [f"rule build{number}", "  command = " + " && ".join(map(_shell_line, commands)).replace("$", "$$")]
        lines += [f"build {_ninja_path(str(work_dir / steps[-1].output))}: build{number}"]
    return "\n".join([*lines, ""])


def _ninja_path(path: str) -> str:
    """Escape a path; ninja_syntax leaves out the dollars, and for some characters ninja has no escape."""
    if found := re.search(r"[|\n\r]", path):
        raise ToolchainError(
            f"ninja cannot read a path with {found[0]!r}: {path!r}. "
            "Put the cache (JITLOAD_CACHE_DIR) or the file elsewhere."
        )
    return re.sub(r"([$ :])", r"$\1", path)


def _shell_line(words: Sequence[str]) -> str:
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    """Quote a word for the shell where it needs it, so that build.ninja stays readable."""
    if "\n" in word or "\r" in word:
        raise ToolchainError(f"ninja cannot read an option with a line break: {word!r}. Write it in one line.")
    return word if re.fullmatch(r"[\w@%+=:,./-]+", word) else "'" + word.replace("'", "'\\''") + "'"


def run_ninja(ninja: Path, work_dir: Path, *, name: str, verbose: bool = False, level: int = logging.DEBUG) -> None:
    """Run ninja in a directory; what the compilers say is logged at `level`, or at INFO where it was asked for.

    Raises:
        CompileError: A command failed; `.log` has the compiler's words.
        ToolchainError: ninja does not run, or failed before any command.
    """
    status, output = run_command((str(ninja), "-v" if verbose else "--quiet"), work_dir)
    if verbose or output.strip():
        usual = level if status == 0 else logging.DEBUG  # an error has it all in its own text
        _log.log(logging.INFO if verbose else usual, "%s", output.rstrip())
    if status != 0:
        raise _failure(name, work_dir, status, output)


def run_command(command: Sequence[str], work_dir: Path) -> tuple[int, str]:
    """Run ninja in a directory; return how it ended, and what it and the compilers said.

    Raises:
        ToolchainError: It does not run.
    """
    _stop_at_exit()
    process = _start(command, work_dir)
    _running.add(process)
    try:
        output, _ = process.communicate()
    except BaseException:
        _stop(process)
        raise
    finally:
        _running.discard(process)
    return process.returncode, output


@functools.lru_cache(maxsize=1)
def _stop_at_exit() -> None:
    """Arrange that no ninja outlives this process.

    A build runs ninja after it has claimed its directory. So this is registered after the function that removes the
    directories of unfinished builds, and `atexit` calls it before that one.
    """
    atexit.register(_stop_running)


def _stop_running() -> None:
    for process in tuple(_running):
        _stop(process)


def _start(command: Sequence[str], work_dir: Path) -> subprocess.Popen[str]:
    """Start ninja in a process group of its own, so that Ctrl-C reaches it once and through us."""
    try:
        return subprocess.Popen(
            command,
            cwd=work_dir,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        hint = "Install it again with: pip install --force-reinstall ninja"
        raise ToolchainError(f"ninja cannot be run: {command[0]}: {error.strerror}. {hint}") from error


def _stop(process: subprocess.Popen[str]) -> None:
    """End ninja and what it started, by force where asking does not help."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
            break
    if process.stdout:
        process.stdout.close()


def _failure(name: str, work_dir: Path, status: int, output: str) -> CompileError | ToolchainError:
    """Return ninja's failure as the compiler's: its words, and the command that failed. Without one it is its own."""
    lines = output.splitlines()
    failed = next((number for number, line in enumerate(lines) if line.startswith("FAILED:")), None)
    if failed is None:
        words_of_ninja = output.strip() or f"it ended with status {status} and said nothing"
        return ToolchainError(f"ninja failed on module {name!r}: {words_of_ninja}")
    command = lines[failed + 1].strip() if failed + 1 < len(lines) else ""
    words = [line for number, line in enumerate(lines) if number not in (failed, failed + 1)]
    log = "\n".join(line for line in words if not line.startswith("ninja: build stopped"))
    return CompileError(
        stage="host", name=name, log=log, diagnostics=parse_diagnostics(log), command=(command,), work_dir=work_dir
    )


def parse_diagnostics(log: str) -> tuple[Diagnostic, ...]:
    """Return the messages of a g++ or clang log."""
    return tuple(
        Diagnostic(file=found["file"], line=int(found["line"]), severity=found["severity"], message=found["message"])
        for found in _DIAGNOSTIC.finditer(log)
    )
