"""The cell magic `%%cuda`, and how modules, functions and errors look in a notebook."""

from __future__ import annotations

import re

import pytest
from builds import ADD, ARCH, build

import jitload

IPython = pytest.importorskip("IPython")

CELL = """// Adds one.
extern "C" __global__ void add(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1;
}
__global__ void hello(int n) { printf("hello %d\\n", n); }
"""
LAUNCH = "--launch 'add: grid=ceil_div(n, 256) block=256 args.n=x.numel()'"


@pytest.fixture(scope="module")
def shell():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "jitload")
    yield shell
    shell.run_line_magic("unload_ext", "jitload")


def run(shell, line: str, cell: str = CELL):
    return shell.run_cell(f"%%cuda {line}\n{cell}")


def test_a_cell_binds_its_kernels_and_its_module(cache, shell):
    result = run(shell, f"vec --arch cpu {LAUNCH}")
    assert result.result is shell.user_ns["vec"]
    assert shell.user_ns["add"].__name__ == "add"
    assert shell.user_ns["hello"].__name__ == "hello"  # `--launch` does not name it
    done = shell.run_cell("import torch; x = torch.ones(4); y = torch.zeros(4); add(x, y); y.tolist()")
    assert done.result == [2.0] * 4


def test_an_edited_cell_gives_the_new_kernel(cache, shell):
    text = 'extern "C" __global__ void one(int* x) { x[0] = 1; }'
    values = []
    for number in (1, 2):
        run(shell, "--arch cpu", text.replace("= 1", f"= {number}"))
        values.append(shell.run_cell("i = torch.zeros(1, dtype=torch.int32); one[1, 1](i); i.item()").result)
    assert values == [1, 2]


def test_what_a_cpu_kernel_prints_is_flushed_behind_the_cell(cache, shell, capfd):
    run(shell, "--arch cpu")
    capfd.readouterr()
    shell.run_cell("hello[2, 1](3)")
    assert capfd.readouterr().out == "hello 3\nhello 3\n"


def test_options_become_those_of_the_build(cache, shell, tmp_path):
    (tmp_path / "number.h").write_text("#define NUMBER 7\n")
    text = '#include "number.h"\nextern "C" __global__ void k(int* x) { x[0] = NUMBER + N; }'
    run(shell, f"--arch cpu --flags '-DN=4 -DM' --include {tmp_path}", text)
    assert shell.run_cell("k[1, 1](i); i.item()").result == 11


def test_a_build_error_is_shown_alone(cache, shell, capsys):
    result = run(shell, f"--arch {ARCH}", "__global__ void bad(float* x) {\n  x[0] = y;\n}\n")
    assert isinstance(result.error_in_exec, jitload.errors.CompileError)
    shown = capsys.readouterr().out
    assert "Traceback" not in shown
    assert "notebook.py" not in shown
    assert 'cell.cu(2): error: identifier "y" is undefined\n    x[0] = y;\n           ^' in shown


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--launch 'add grid=1'", "begin with the name of the kernel and a colon"),
        ("--launch 'add: 256'", "'256' is not of the form field=value"),
        ("--launch 'add: grids=1'", "unexpected keyword argument 'grids'"),
        ("--launch 'add: grid=1", "No closing quotation"),
        ("--frob", "unrecognized arguments: --frob"),
        ("two words", "unrecognized arguments: words"),
        ("a-b", "must be an identifier"),
        ("add --arch cpu", "a kernel has the same name"),
    ],
)
def test_wrong_options_are_usage_errors(cache, shell, capsys, line, message):
    result = run(shell, line)
    assert type(result.error_in_exec).__name__ == "UsageError"
    assert message in capsys.readouterr().err


def test_fields_of_a_launch(shell):
    from jitload.notebook import read_launches

    text = "k: kernel=scale<float> grid=(ceil_div(n, 32), n == 4) block=64 cooperative=True args.n=x.numel() args.m=2"
    launch = read_launches([text])["k"]
    assert (launch.kernel, launch.grid, launch.block) == ("scale<float>", ("ceil_div(n, 32)", "n == 4"), 64)
    assert launch.cooperative is True
    assert dict(launch.args) == {"n": "x.numel()", "m": "2"}


def test_completion(shell):
    from IPython.core import completer

    def complete(line: str) -> list[str]:
        with completer.provisionalcompleter():
            return [completion.text for completion in shell.Completer.completions(line, len(line))]

    assert complete("%%cuda vec --la") == ["--launch"]
    assert "cpu" in complete("%%cuda --arch c")


def test_a_slow_build_shows_its_stage(shell, capsys, monkeypatch):
    from jitload import notebook, stages

    monkeypatch.setattr(notebook, "_SHOW_AFTER_S", 0.05)
    with notebook._shown_stages(), stages.stage("NVRTC compiles vec"):
        shown = ""
        while "NVRTC compiles vec, 0 s" not in shown:
            shown += capsys.readouterr().err
    assert "jitload took 0." in capsys.readouterr().err
    assert not stages.listeners


def test_help_shows_the_comment_and_the_source(cache, shell, capsys):
    run(shell, "--arch cpu", f"int before; // of this\n{CELL}")
    shell.run_cell("add?")
    shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert "add(x: torch.Tensor, y: torch.Tensor, n: int, /) -> None" in shown
    assert "Adds one." in shown
    assert "Class docstring" not in shown
    shell.run_cell("add??")
    shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert shown.partition("Source:")[2].strip() == CELL.partition("__global__ void hello")[0].strip()


# ---- modules and functions ---------------------------------------------------------------------------------------


def test_a_module_shows_its_kernels(cache):
    source = """extern "C" __global__ void k(float* x) {
    __shared__ float s[32]; s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[threadIdx.x] = s[31 - threadIdx.x]; }"""
    first = jitload.load_inline("vec", cuda_sources=source, arch=ARCH)
    page = first._repr_html_()
    assert "<div>vec: built in " in page
    assert "<code>k(float* x)</code>" in page
    assert "<td>128 B</td>" in page
    jitload.pipeline._modules.clear()
    again = jitload.load_inline("vec", cuda_sources=source, arch=ARCH)
    assert "<div>vec: from the cache</div>" in again._repr_html_()
    assert "<div>vec: loaded</div>" in jitload.load_module(build(source, "vec"))._repr_html_()


def test_local_memory_is_marked(cache):
    source = (
        'extern "C" __global__ void k(int* x) { int a[64]; for (int i = 0; i < 64; ++i) a[x[i]] = i; x[0] = a[x[1]]; }'
    )
    module = jitload.load_inline("local", cuda_sources=source, arch=ARCH)
    assert '<td style="color: #c00"><b>256 B</b></td>' in module._repr_html_()


def test_text_in_a_terminal(cache):
    from IPython.lib.pretty import pretty

    module = jitload.load_inline("vec", cuda_sources=ADD, arch="cpu")
    assert pretty(module).splitlines()[1] == "  add(const float* x, float* y, int n)"
