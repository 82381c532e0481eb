"""The process that runs the pages of the manual and the examples, as a pytest fixture; a conftest imports it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from builds import python_env


class PageRun(NamedTuple):
    """How a page ended: its exit code, what it printed, and the directory in which it ran."""

    status: str
    output: str
    directory: Path


@pytest.fixture(scope="session")
def run_page(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], PageRun]]:
    """Return a function that runs a page, an example or Sphinx, see `support/manual.py`."""
    home = tmp_path_factory.mktemp("pages")
    environment = python_env()
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    command = [sys.executable, "-m", "support.manual", run_dir, home]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:

        def run(page: Path) -> PageRun:
            print(page, file=process.stdin, flush=True)
            directory = Path(process.stdout.readline().rstrip("\n"))
            return PageRun((directory / "status").read_text(), (directory / "output").read_text(), directory)

        yield run
        process.stdin.close()
