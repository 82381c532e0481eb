"""Runs the blocks of the manual's pages: `python -m support.manual RUN_DIRECTORY DIRECTORY`.

The paths of pages are read from the standard input, a line each. The answer is a line with the directory in which the
page ran, below DIRECTORY, where `status` and `output` are its exit code and what it printed.

Where a page is a directory, Sphinx builds the manual in it, and writes `html`. Where it is a Python file, it is run.

The Python and shell blocks of a page run in their order, in one namespace and one directory. A comment in HTML before a
block, which readers do not see, says more:

    <!-- not run: the reason -->    the block is left out
    <!-- needs a GPU -->            it runs where there is one; the same for "nvcc", "nvcc and a GPU", "JAX"
    <!-- file: x.cu -->             the block, in any language, is written to a file
    <!-- setup … -->                Python that defines what the next blocks use
"""

import multiprocessing
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jitload.measuring import benchmark

from .headers import share_headers
from .imports import import_slow_modules, raise_first_error

_PART = re.compile(
    r"^<!-- setup\n(?P<setup>.*?)^-->\n"
    r"|(?:^ *<!-- (?P<mark>[^\n]*) -->\n)?^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
_SHELLS = ("bash", "sh")
_TIMEOUT_S = 300.0


class Block(NamedTuple):
    """A block of a page: the line of its first character, its language, and what the comment before it says."""

    line: int
    language: str
    text: str
    mark: str


def read_blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks that do something."""
    text = page.read_text(encoding="utf-8")
    for match in _PART.finditer(text):
        if match["setup"] is not None:
            yield Block(text.count("\n", 0, match.start("setup")) + 1, "python", match["setup"], "")
            continue
        mark, language = match["mark"] or "", match["language"]
        if language in ("python", *_SHELLS) or mark.startswith("file: "):
            line = text.count("\n", 0, match.start("text")) + 1
            yield Block(line, language, textwrap.dedent(match["text"]), mark)


def is_runnable(block: Block) -> bool:
    """Return whether this machine has what the block needs."""
    needs = block.mark.removeprefix("needs ").split(" and ") if block.mark.startswith("needs ") else []
    if "a GPU" in needs:
        import torch

        if not torch.cuda.is_available():
            return False
    if "JAX" in needs and not find_spec("jax_tvm_ffi"):
        return False
    if "nvcc" in needs:
        from support.nvcc import real_nvcc

        return real_nvcc() is not None
    return not block.mark.startswith("not run: ")


def run_page(page: Path) -> None:
    """Run the blocks of a page in the working directory. Programs that a page without torch starts do not import it."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    if "torch" not in page.read_text(encoding="utf-8"):
        without_torch = Path("without_torch", "torch.py").absolute()
        without_torch.parent.mkdir()
        without_torch.write_text("raise ImportError\n")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(without_torch.parent), os.environ["PYTHONPATH"]])
    for block in read_blocks(page):
        if not is_runnable(block):
            continue
        print(f"{page.name}:{block.line}", flush=True)  # noqa: T201  the output is shown if the page fails
        if block.mark.startswith("file: "):
            Path(block.mark.removeprefix("file: ")).write_text(block.text)
        elif block.language in _SHELLS:
            run_shell(block.text)
        else:  # with the lines of the page
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), namespace)


def run_shell(text: str) -> None:
    """Run a shell block, and jitload's commands in this process, which has imported torch."""
    parts = re.split(r"^(?:python -m )?(jitload[\w.]*) (.*)\n", text, flags=re.MULTILINE)
    for script, module, arguments in zip(parts[::3], [*parts[1::3], ""], [*parts[2::3], ""], strict=True):
        if script:
            subprocess.run(["bash", "-euo", "pipefail", "-c", script], check=True)
        sys.argv[1:] = shlex.split(arguments)
        try:
            if module:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            if end.code:
                sys.exit(f"{module} {arguments}: exit code {end.code}")


def main() -> None:
    """Run each page in a process of its own, in which the slow imports are past."""
    import torch

    from jitload.judging import judge

    import_slow_modules()
    raise_first_error()
    benchmark._MAX_SAMPLES = judge._MAX_SAMPLES = 5  # instead of 500 and 50
    share_headers(Path(sys.argv[1]), pytest.MonkeyPatch())
    context = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "fork")  # CUDA survives no fork
    home = Path(sys.argv[2])
    for line in sys.stdin:
        page = Path(line.rstrip("\n"))
        directory = Path(tempfile.mkdtemp(prefix=f"{page.stem}-", dir=home))
        process = context.Process(target=_run_child, args=(page, directory))
        process.start()
        process.join(_TIMEOUT_S)
        process.kill()
        process.join()
        (directory / "status").write_text(str(process.exitcode))
        print(directory, flush=True)  # noqa: T201  the answer


def _run_child(page: Path, directory: Path) -> None:
    output = os.open(directory / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(directory)
    sys.path[0] = str(directory)
    try:
        if page.is_dir():
            from sphinx.cmd.build import main as build_manual

            os._exit(build_manual(["-q", "-W", "--keep-going", str(page), "html"]))
        from .judging import one_template  # no module of the tests may import a plugin before pytest does

        with one_template():
            if page.suffix == ".py":
                sys.path[0] = str(page.parent)
                runpy.run_path(str(page), run_name="__main__")
            else:
                run_page(page)
    except SystemExit as error:
        sys.exit(f"the page calls sys.exit({error.code!r})")


if __name__ == "__main__":
    main()
