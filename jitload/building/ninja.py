"""Describes the commands of a build, writes them to `build.ninja`, and runs ninja."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from jitload.building.stages import shown_log, stage
from jitload.errors import CompileError, Diagnostic, ToolchainError, find_diagnostics
from jitload.toolchain.host import tool_environment

_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^\n]+?):(?P<line>\d+):(?:\d+:)? (?P<severity>fatal error|error|warning|note): (?P<message>.*)$",
    re.MULTILINE,
)
# Messages of nvcc are separated by empty lines; a message of g++ begins with its location.
_MESSAGE_START = re.compile(r"(?<=\n\n)(?=\S)|^(?=In file included from |[^\s:]+:\d+:\d+: (?!note:))", re.MULTILINE)
_SHUTDOWN_S = 5.0  # seconds; how long a stopped compiler may take to remove its files and end
_log = logging.getLogger(__name__)
_running: set[subprocess.Popen[str]] = set()

# With these options, symbols are bound when the library is loaded, so an undefined symbol is an error at that time and
# not at the first call. The library is never unloaded.
_LINK_FLAGS = ("-shared", "-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,-z,noexecstack")


os.register_at_fork(after_in_child=_running.clear)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command of a build.

    The command makes the file `output` from the files `inputs`. `reads` are other files that the command reads.
    """

    output: str
    command: tuple[str, ...]
    inputs: tuple[str, ...]
    reads: tuple[str, ...] = ()


def compile_step(
    compiler: Sequence[str], flags: Sequence[str], source: str, output: str, *, reads: tuple[str, ...] = ()
) -> Step:
    """Return the step that compiles a source to an object."""
    command = (*compiler, *flags, "-c", source, "-o", output)
    return Step(output=output, command=command, inputs=(source,), reads=reads)


def link_step(compiler: Sequence[str], objects: tuple[str, ...], output: str, options: Sequence[str]) -> Step:
    """Return the step that links objects to a shared library."""
    command = (*compiler, *objects, "-o", output, *_LINK_FLAGS, *options)
    return Step(output=output, command=command, inputs=objects)


def join_step(compiler: Sequence[str], objects: tuple[str, ...], output: str) -> Step:
    """Return the step that links object files into one object file."""
    command = (*compiler, "-r", "-nostdlib", *objects, "-o", output)
    return Step(output=output, command=command, inputs=objects)


def write_ninja(work_dir: Path, steps: Sequence[Step]) -> None:
    """Write `build.ninja` for the steps."""
    (work_dir / "build.ninja").write_bytes(os.fsencode(ninja_text(steps)))


def ninja_text(steps: Sequence[Step]) -> str:
    """Return the text of `build.ninja` for the steps."""
    lines = []
    for number, step in enumerate(steps):
        inputs = " ".join(map(_ninja_path, step.inputs))
        command = shell_line(step.command).replace("$", "$$")
        reads = " | " + " ".join(map(_ninja_path, step.reads)) if step.reads else ""
        lines += [f"rule step{number}", f"  command = {command}", f"  description = {step.output}"]
        lines += [f"build {_ninja_path(step.output)}: step{number} {inputs}{reads}"]
    return "\n".join([*lines, ""])


def _ninja_path(path: str) -> str:
    if unescapable := re.search(r"[|\n\r]", path):
        raise ToolchainError(
            f"ninja cannot read the path {path!r}, because it contains {unescapable[0]!r}. "
            "Move the file or the cache (JITLOAD_CACHE_DIR) to another directory."
        )
    return re.sub(r"([$ :])", r"$\1", path)


def shell_line(words: Sequence[str]) -> str:
    """Return a command as a shell line, the form in which ninja runs and prints commands."""
    if word := next((word for word in words if "\n" in word or "\r" in word), None):
        raise ToolchainError(f"ninja cannot read an option with a line break: {word!r}. Write it on one line.")
    return shlex.join(words)


def run_ninja(ninja: Path, work_dir: Path, *, name: str, level: int = logging.DEBUG, is_urgent: bool = True) -> None:
    """Run ninja in a directory with a `build.ninja`.

    The compilers' output is logged at `level`. With `verbose=True`, the commands and their output are logged at level
    INFO. `name` is the module's name for error messages. If the build is not urgent, it gets the lowest priority and
    one processor.

    Raises:
        CompileError: A command failed. The error's `log` has the compiler's output.
        ToolchainError: ninja cannot be run, or failed before it ran a command.
    """
    _stop_at_exit()
    process, verbose = None, shown_log.is_shown
    try:
        with _delayed_signals():
            jobs = () if is_urgent else ("-j1",)
            process = _start((str(ninja), *jobs, "-v" if verbose else "--quiet"), work_dir)
            _running.add(process)
            if not is_urgent:
                with suppress(OSError):
                    os.setpriority(os.PRIO_PGRP, process.pid, 19)
        with stage(f"ninja builds {name}"):
            output, _ = process.communicate()
    except BaseException:
        if process:
            _stop(process)
        raise
    finally:
        _running.discard(process)
    if verbose or output.strip():
        quiet_level = level if process.returncode == 0 else logging.DEBUG  # after a failure, the error has the output
        _log.log(logging.INFO if verbose else quiet_level, "%s", _drop_repeats([output]).rstrip())
    if process.returncode != 0:
        raise _failure(name, work_dir, process.returncode, output)


def check_is_made(path: Path, compiler: Sequence[str]) -> None:
    """Raise ToolchainError if the compiler reported no error but did not make the file `path`."""
    if not path.is_file():
        raise ToolchainError(
            f"{' '.join(compiler)} reported no error but did not make {path.name}. Is it a C++ compiler? "
            "Set JITLOAD_CXX to one."
        )


@functools.lru_cache(maxsize=1)
def _stop_at_exit() -> None:
    """Make sure that no ninja outlives this process.

    ninja must stop before the directories of unfinished builds are removed. The removal is therefore registered before
    `stop_running`: `atexit` calls the registered functions in reverse order.
    """
    atexit.register(stop_running)


def stop_running() -> None:
    """Stop all ninjas that this process has started."""
    for process in tuple(_running):
        _stop(process)


@contextmanager
def _delayed_signals() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the block ends.

    An interrupted `Popen` could leave a running ninja that this process cannot stop.
    """
    caught: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Callable[..., object]] = {}
    if threading.current_thread() is threading.main_thread():  # signal handlers run only in the main thread
        for sign in (signal.SIGINT, signal.SIGTERM):
            if callable(handler := signal.getsignal(sign)):
                handlers[sign] = handler
    try:
        for number in handlers:
            signal.signal(number, lambda *arguments: caught.append(arguments))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in caught:
            handlers[number](number, frame)


def _start(command: Sequence[str], work_dir: Path) -> subprocess.Popen[str]:
    """Start ninja in its own session, so that Ctrl-C reaches only this process, which then stops ninja."""
    try:
        return subprocess.Popen(
            command,
            cwd=work_dir,
            env=tool_environment(),
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
    """Terminate ninja and the commands that it started. Kill them if they still run after 5 s."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SHUTDOWN_S)
            break
    if process.stdout:
        process.stdout.close()


def _failure(name: str, work_dir: Path, status: int, output: str) -> CompileError | ToolchainError:
    compiler_output = re.sub(r"^ninja: build stopped.*\n?", "", output, flags=re.MULTILINE)
    before, *failures = re.split(r"^FAILED:.*\n", compiler_output, flags=re.MULTILINE)
    if not failures:
        problem = output.strip() or f"it ended with status {status} and printed nothing"
        return ToolchainError(f"ninja failed on module {name!r}: {problem}")
    command = failures[0].partition("\n")[0].strip()
    log = _drop_repeats([before, *(failure.partition("\n")[2] for failure in failures)])
    return CompileError(
        stage="host", name=name, log=log, diagnostics=parse_diagnostics(log), command=(command,), work_dir=work_dir
    )


def _drop_repeats(texts: Sequence[str]) -> str:
    """Return the joined output of commands, with only the first copy of each message."""
    messages: dict[str, str] = {}
    for text in texts:
        for message in _MESSAGE_START.split(text):
            messages.setdefault(message.strip("\n"), message)
    return "".join(messages.values())


def parse_diagnostics(log: str) -> tuple[Diagnostic, ...]:
    """Return the messages of a g++ or clang log."""
    return find_diagnostics(_DIAGNOSTIC, log)
