"""The cell magic `%%cuda`, and how modules, functions and errors look in a notebook."""

import re

import pytest
from builds import ARCH, build

import jitload

IPython = pytest.importorskip("IPython")

CELL = """// Adds one.
extern "C" __global__ void add(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1;
}
__global__ void hello(int n) { printf("hello %d\\n", n); }
"""


@pytest.fixture(scope="module")
def shell():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "jitload")
    shell.run_cell("import torch; i = torch.zeros(1, dtype=torch.int32)")
    yield shell
    shell.run_line_magic("unload_ext", "jitload")
    InteractiveShell.clear_instance()


def run(shell, line: str, cell: str = CELL):
    return shell.run_cell(f"%%cuda {line}\n{cell}")


def test_a_cell_binds_its_kernels_and_its_module(shell):
    result = run(shell, "vec --arch cpu")
    assert result.result is shell.user_ns["vec"]
    assert shell.user_ns["add"].__name__ == "add"
    assert shell.user_ns["hello"].__name__ == "hello"
    done = shell.run_cell("import torch; x = torch.ones(4); y = torch.zeros(4); add[1, 4](x, y, 4); y.tolist()")
    assert done.result == [2.0] * 4


ODD = "#define K(x) x\n__global__ void k(int* x) { // \u00fc {i} $i\r\n int a = 1\r\n? 12\n: 3; x[0] = a\n%5 +\n!a; }"


@pytest.mark.parametrize(
    ("options", "text", "constant"),
    [
        ("", "__global__ void k(int* x) { x[0] = 1; }", 1),
        ("", "__global__ void k(int* x) { x[0] = 2; }", 2),  # an edited cell gives the new kernel
        ("--flags -DN=5", "__global__ void k(int* x) { x[0] = N; }", 5),  # a value that is like an option
        ("--flags '-DN=4 -DM' --include {}", '#include "n.h"\n__global__ void k(int* x) { x[0] = NUMBER + N; }', 11),
        ("", ODD, 2),  # IPython leaves the text as it is
    ],
)
@pytest.mark.usefixtures("cache")
def test_the_text_and_the_options_become_those_of_the_build(shell, tmp_path, options, text, constant):
    (tmp_path / "n.h").write_text("#define NUMBER 7\n")
    assert run(shell, f"--arch {ARCH} {options.format(tmp_path)}", text).success
    stored = re.search(r"mov\.[bu]32 +\t*%r\d+, (\d+);", str(shell.user_ns["k"].ptx()))
    assert int(stored[1]) == constant


def test_an_invalid_access_does_not_end_the_process(cache, shell):
    run(shell, "--arch cpu --sanitize", 'extern "C" __global__ void k(int* x) { x[threadIdx.x + 4] = 1; }')
    with pytest.raises(RuntimeError, match=r"a write of 4 bytes at byte 16 of 'x', which has 4 bytes, in block"):
        shell.run_cell("k[1, 1](i)").raise_error()


def test_kernels_are_bound_wherever_they_come_from(cache, shell, tmp_path):
    (tmp_path / "more.h").write_text("__global__ void included(int n) {}\n")
    text = """#include "more.h"
        #define KERNEL(name) \\
            __global__ void name(int n) {}
        KERNEL(made)
        template <int N> __global__ void sized(int n) {} template __global__ void sized<3>(int n);
        namespace a { __global__ void inner(int n) {} }
        #if 0
        __global__ void absent(int n) {}
        #endif
        """
    names = set(run(shell, f"--arch {ARCH} --include {tmp_path}", text).result)
    assert names == {"included", "made", "sized", "inner"}


def test_functions_of_the_host_are_named_and_show_errors_without_frames(cache, shell, capsys):
    text = "// Returns x[0].\nint first(const int* x) { return x[0]; }\nint twice(int n) { return 2 * n; }"
    run(shell, "--functions 'first, twice'", text)
    assert shell.run_cell("twice(3)").result == 6
    shell.run_cell("first(5.5)")
    shown = capsys.readouterr().out
    assert "first(): argument 'x' must be" in shown
    assert "direct" not in shown


def test_a_cell_that_exports_nothing_is_an_error(cache, shell, capsys):
    text = "#include <tvm/ffi/c_api.h>\n// TVM_FFI_DLL_EXPORT_TYPED_FUNC\nint f(int n) { return n; }"
    assert not run(shell, "", text).success
    assert "the cell exports nothing. Name functions of its host code: --functions 'f,g'" in capsys.readouterr().err
    for text in ("// only a comment\n", "\n\n", "int main() { return 0; }"):
        assert not run(shell, "--arch cpu", text).success


@pytest.mark.parametrize("name", ["lambda", "In"])
def test_names_that_cannot_be_variables(cache, shell, capsys, name):
    text = "\n".join(f"__global__ void {kernel}(int n) {{}}" for kernel in ("In", "lambda"))
    assert not run(shell, f"--arch {ARCH}", text).success
    assert "cannot be a variable of the notebook. Name the module" in capsys.readouterr().err
    run(shell, f"names --arch {ARCH}", text)
    assert shell.user_ns["names"][name].__name__ == name
    assert shell.user_ns.get(name) is not shell.user_ns["names"][name]
    assert not run(shell, f"{name} --arch {ARCH}", text).success


def test_a_kernel_that_fails_on_a_gpu_fails_its_cell(shell, capsys, monkeypatch):
    import torch

    def fail():
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    result = shell.run_cell("1")
    assert not result.success
    assert isinstance(result.error_in_exec, RuntimeError)
    shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert shown.endswith("RuntimeError: an illegal memory access was encountered\n")
    assert "notebook.py" not in shown
    assert isinstance(shell.run_cell("1 / 0").error_in_exec, ZeroDivisionError)
    assert "illegal" not in capsys.readouterr().out


def test_the_extension_is_loaded_once_and_removed_whole(shell):
    for magic in ("reload_ext", "load_ext"):
        shell.run_line_magic(magic, "jitload")
        jitload.load_ipython_extension(shell)
        assert [call.__name__ for call in shell.events.callbacks["post_run_cell"]].count("_end_cell") == 1
    shell.run_line_magic("unload_ext", "jitload")
    assert "cuda" not in shell.magics_manager.magics["cell"]
    assert not any(call.__name__ == "_end_cell" for call in shell.events.callbacks["post_run_cell"])
    shell.run_line_magic("load_ext", "jitload")


def test_wrong_options_are_usage_errors(cache, shell, capsys):
    usage = {"a-b": "must be an identifier", "add --arch cpu": "a kernel has the same name", "--help": "%%cuda? shows"}
    for line, message in usage.items():
        assert type(run(shell, line).error_in_exec).__name__ == "UsageError"
        assert message in capsys.readouterr().err


WRONG = 'cell.cu(2): error: identifier "y" is undefined\n    x[0] = y;\n           ^'


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("line", "cell", "message"),
    [
        (f"--arch {ARCH}", "__global__ void bad(float* x) {\n  x[0] = y;\n}\n", WRONG),
        ("--arch foo", CELL, "ToolchainError: --arch foo is not an architecture"),
        ("--arch cpu", "// no code", "name its functions in --functions, or export them with TVM_FFI_"),
        (f"--arch {ARCH} --flags=--odd", CELL, "remove this option from --flags."),
        (f"--arch {ARCH}", '#include "no.h"\n' + CELL, "pass its directory in --include."),
        (f"--arch {ARCH}", "template <class T> __global__ void k(T* x) {}", "add `template __global__ void k<float>("),
        ("--arch cpu --functions f", f"int f() {{ return 1; }}\n{CELL}", 'leave "cpu" out of --arch'),
        (f"--arch {ARCH} --functions firts", f"int first(int* x) {{ return 1; }}\n{CELL}", "Did you mean 'first'?"),
    ],
)
def test_errors_speak_of_the_options_and_show_no_frames(shell, capsys, line, cell, message):
    assert isinstance(run(shell, line, cell).error_in_exec, jitload.JitLoadError)
    shown = capsys.readouterr().out
    assert message in shown
    assert "notebook.py" not in shown
    assert "Traceback" not in shown
    assert not re.search(r"\b(?:arch|extra_\w+|functions|cuda_sources)=", shown)


def test_a_text_for_torch_needs_no_gpu(shell):  # what all such texts share is in the cache of the test run
    text = "#include <torch/extension.h>\ntorch::Tensor twice(torch::Tensor x) { return x * FACTOR; }"
    run(shell, "--functions twice --flags -DFACTOR=2", text)
    assert shell.run_cell("twice(torch.ones(2)).tolist()").result == [2.0, 2.0]


def test_help_shows_the_signature(cache, shell, capsys):
    run(shell, f"--arch {ARCH}", f"int before; // of this\n{CELL}")
    shell.run_cell("add?")
    shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert "add(x: torch.Tensor, y: torch.Tensor, n: int, /) -> None" in shown


def test_a_module_shows_its_kernels(cache):
    source = """extern "C" __global__ void k(float* x) {
    __shared__ float s[32]; s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[threadIdx.x] = s[31 - threadIdx.x]; }"""
    first = jitload.load_inline("vec", cuda_sources=source, arch=ARCH)
    page = first._repr_html_()
    assert "<caption>vec: built in " in page
    assert "<td>k(float* x)</td>" in page
    assert "<td>128 B</td>" in page
    assert "<caption>vec: loaded</caption>" in jitload.load_module(build(source, "vec"))._repr_html_()


def test_cubins_and_kernels_have_a_short_repr(cache):
    source = "".join(f'extern "C" __global__ void k{i}(float* x) {{ x[0] = {i}; }}\n' for i in range(6))
    cubin = jitload.compile_cubin(source, arch=ARCH)
    assert re.fullmatch(rf"<jitload cubin for {ARCH}, [\d,]+ bytes: k0\(.*; k3\(float\* x\); 2 more>", repr(cubin))
    kernel = cubin.kernels[0]
    facts = f"registers {kernel.registers}, max threads per block 1024"
    assert repr(kernel) == f"<jitload kernel k0(float* x): {facts}>"


def test_text_of_the_user_cannot_become_html(cache):
    source = """/* </td><script>alert(1)</script> & "quotes" */
        template <class T> __global__ void scale(T* x) { x[0] *= 2; }"""
    launches = {"scale": jitload.Launch(kernel="scale<float>", shared_bytes="x.size(0) < 3 and 8")}
    page = jitload.load_inline("m", cuda_sources=source, arch=ARCH, functions=launches)._repr_html_()
    assert "<script" not in page
    assert set(re.findall(r"<(\w+)", page)) == {"caption", "table", "thead", "tr", "th", "tbody", "td"}
