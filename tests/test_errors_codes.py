"""The code of each error, and the section of the manual about it."""

import json
import pickle
import re
import traceback

import pytest

from jitload import errors
from jitload.cli import main
from jitload.cli.doctor import read_sections
from jitload.errors import CompileError, JitLoadError, LaunchSpecError, MismatchError, ToolchainError

CLASSES = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, JitLoadError)}
ERRORS = [
    *(error_type("it failed") for error_type in sorted(CLASSES - {CompileError, MismatchError}, key=str)),
    MismatchError("it differs", function="f", output="y"),
    *(CompileError(stage=stage, name="m", log="it failed") for stage in errors.STAGES),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_each_code_has_a_section_and_the_reason_ends_the_traceback(error):
    assert "**What to do.**" in read_sections()[error.code]
    assert error.code not in str(error)
    lines = traceback.format_exception_only(pickle.loads(pickle.dumps(error)))
    assert re.search("it failed|it differs|could not compile", "".join(lines).splitlines()[-1])


@pytest.mark.parametrize(
    "error",
    [
        CompileError(stage="host", name="m", log="m.cc:1: error: no\n   ^", command=("g++",), hint="advice"),
        LaunchSpecError("no 'm'", kernel="f", field="grid[0]", expression="m + 1", column=0, hint="advice"),
        ToolchainError("the tool failed:\nits output\nadvice"),
    ],
)
def test_the_reason_is_the_first_line_and_the_last(error):
    first, *between, last = str(error).splitlines()
    assert last == first.rstrip(":")
    assert "advice" in "".join(between)
    assert error.message().startswith(first)
    assert f"{error}" == error.message()  # errors that quote it do not repeat the reason in their middle


def test_the_last_line_of_a_command_that_fails_is_the_reason(tmp_path, capsys):
    (tmp_path / "k.cu").write_text("__global__ void k(int* x) { x[0] = nothing; }")
    assert main(["compile", str(tmp_path / "k.cu"), "--arch", "sm_90", "-o", str(tmp_path / "k.so")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert 'identifier "nothing" is undefined' in lines[-1]
    assert lines[0] == "JL-NVRTC: `jitload explain JL-NVRTC` says what to do"


def test_each_section_is_about_a_code():
    assert read_sections().keys() == {error.code for error in ERRORS}


def test_explain_prints_the_section_of_a_code(capsys):
    assert main(["explain", "jl-tools"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("JL-TOOLS\n\n**Cause.** ")
    assert "](" not in text
    assert main(["explain", "JL-TOOLS", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == read_sections()["JL-TOOLS"]
    assert main(["explain", "JL-NOTHING"]) == 2
    assert "JL-NVRTC" in capsys.readouterr().err
