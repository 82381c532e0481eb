"""The code of each error, and the section of the manual about it."""

from __future__ import annotations

import json
import pickle
import traceback

import pytest

from jitload import errors
from jitload.cli import main
from jitload.cli.doctor import read_sections
from jitload.errors import CompileError, JitLoadError, MismatchError

CLASSES = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, JitLoadError)}
ERRORS = [
    *(error_type("it failed") for error_type in sorted(CLASSES - {CompileError, MismatchError}, key=str)),
    MismatchError("it differs", function="f", output="y"),
    *(CompileError(stage=stage, name="m", log="it failed") for stage in errors._COMPILERS),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_each_code_has_a_section_and_ends_the_traceback(error):
    assert "**What to do.**" in read_sections()[error.code]
    assert error.code not in str(error)
    assert traceback.format_exception_only(pickle.loads(pickle.dumps(error)))[-1].startswith(f"{error.code}: ")


def test_each_section_is_about_a_code():
    assert read_sections().keys() == {error.code for error in ERRORS}


def test_explain(capsys):
    assert main(["explain", "jl-tools"]) == 0
    text = capsys.readouterr().out
    assert text.strip() == read_sections()["JL-TOOLS"]
    assert main(["explain", "JL-TOOLS", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == text.strip()
    assert main(["explain", "JL-NOTHING"]) == 2
    assert "JL-NVRTC" in capsys.readouterr().err


def test_the_command_line_prints_the_code(capsys):
    assert main(["inspect", "missing.so"]) == 1
    assert "JL-LOAD: `jitload explain JL-LOAD`" in capsys.readouterr().err
