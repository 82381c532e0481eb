"""Notebooks in a kernel of Jupyter: the examples, interrupts, and where output and errors appear."""

import gc
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from builds import ARCH, ROOT, python_env
from test_notebook import CELL as ONE_CELL

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the client's event loops

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
CELL = f"""{ONE_CELL}
__device__ unsigned next(unsigned n) {{ return n * 1664525 + (n >> 7); }}
__global__ void endless(unsigned* x) {{ for (unsigned n = x[0]; n != 77 || x[1]; n = next(n)) x[2] += n == 78; }}
"""
NAMES = "template <int N> __device__ float f(float x) { return f<N - 1>(x * 1.5f + N) + f<N - 1>(x - N); }"
SLOW = f"{NAMES} template <> __device__ float f<0>(float x) {{ return x; }}\n"  # 2**25 calls
SLOW += "__global__ void slow(float* x) { x[0] = f<25>(x[0]); }"
SUM = (
    "template <int N, int M> struct Sum { enum { value = Sum<N - 1, 2 * M>::value + Sum<N - 1, 2 * M + 1>::value }; };"
)
SLOW_AT_O0 = f"{SUM}\ntemplate <int M> struct Sum<0, M> {{ enum {{ value = M }}; }};\n"  # 2**18 classes
SLOW_AT_O0 += "__global__ void slow(float* x) { x[0] = Sum<17, 1>::value; }"


class Output(NamedTuple):
    """What a cell showed: its streams, result and error as text, and its seconds."""

    text: str
    status: str
    seconds: float


class Notebook:
    """A kernel, and the client that sends it cells."""

    def __init__(self, **environment: str) -> None:
        from jupyter_client.manager import KernelManager

        self.manager = KernelManager(kernel_name="python3")
        self.manager.kernel_spec.argv[0] = sys.executable
        inherited = {name: value for name, value in python_env(environment).items() if name != "PYTEST_CURRENT_TEST"}
        self.manager.start_kernel(env=inherited)  # with the variable, ipykernel leaves the standard output alone
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)

    def run(self, code: str, *, interrupt_after_s: float | None = None) -> Output:
        """Run a cell."""
        shown: list[str] = []

        def show(message: dict[str, Any]) -> None:
            content = message["content"]
            data = content.get("data", {})
            shown.append(content.get("text") or data.get("text/plain") or "\n".join(content.get("traceback", ())))

        timer = threading.Timer(interrupt_after_s or 0, self.manager.interrupt_kernel)
        if interrupt_after_s:
            timer.start()
        started = time.monotonic()
        reply = self.client.execute_interactive(code, output_hook=show, timeout=120, allow_stdin=False)["content"]
        if interrupt_after_s:
            timer.join()
        shown += [payload["data"]["text/plain"] for payload in reply.get("payload", ()) if "data" in payload]
        text = re.sub(r"\x1b\[[\d;]*m", "", "".join(shown))
        return Output(text, reply["status"], time.monotonic() - started)


FASTER = """
import pathlib, pytest
from jitload.measuring import benchmark
from support.headers import share_headers
benchmark._MAX_SAMPLES = 5  # instead of 500
share_headers(pathlib.Path({run_dir!r}), pytest.MonkeyPatch())
"""


@pytest.fixture(scope="module")
def notebook(run_dir: Path) -> Iterator[Notebook]:
    notebook = Notebook(CLICOLOR_FORCE="1", JITLOAD_CPU_GPU_CHECK="0")
    assert notebook.run(FASTER.format(run_dir=str(run_dir))).status == "ok"
    notebook.run("%load_ext jitload")
    notebook.run("import threading, torch, jitload; ones = torch.ones(4); sums = torch.zeros(4)")
    built = notebook.run(f"%%cuda vec --arch cpu\n{CELL}")
    assert built.status == "ok", built.text
    yield notebook
    notebook.client.stop_channels()
    notebook.manager.shutdown_kernel(now=True)
    del notebook.client, notebook.manager  # they leave event loops open, of which a later test would be warned
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda _: None)
        gc.collect()


def run_notebook(notebook: Notebook, name: str) -> str:
    """Execute a notebook of the examples, and return what its cells showed."""
    page = nbformat.read(ROOT / "examples" / name, 4)
    client = nbclient.NotebookClient(page, timeout=120, km=notebook.manager)
    client.kc = notebook.client
    client.execute(reset_kc=False, cleanup_kc=False)
    outputs = [output for cell in page.cells for output in cell.get("outputs", ())]
    return "\n".join(output.get("text") or output["data"]["text/plain"] for output in outputs)


def check_notebooks(notebook: Notebook, device: str) -> None:
    quickstart = run_notebook(notebook, "quickstart.ipynb")
    assert "axpy(float a, const float* x, const float* y, float* out, int n)" in quickstart
    assert "argument 'x' must be a float32" in quickstart
    assert f"axpy on {device}" in quickstart
    tuning = run_notebook(notebook, "tuning.ipynb")
    assert re.search(r"naive +[\d.]+.*\ntiled +[\d.]+", tuning)
    assert "256 threads per block" in tuning
    assert ".target sm_" in tuning
    assert re.search(r'transpose.cu", line \d+', tuning)


def test_the_notebooks_run_without_a_gpu(notebook):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    check_notebooks(notebook, "cpu")


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_the_notebooks_run_on_a_gpu(notebook):
    check_notebooks(notebook, "cuda:0")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path):
    page = nbformat.read(path, 4)
    nbformat.validate(page)
    code = [cell for cell in page.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert max(len(line) for cell in page.cells for line in cell.source.splitlines()) <= 120


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_what_a_gpu_prints_appears_in_its_cell(notebook):
    assert notebook.run(f"%%cuda\n{CELL}").status == "ok"
    for number in range(3):
        assert notebook.run(f"hello[1, 1]({number})").text == f"hello {number}\n"
    assert notebook.run(f"%%cuda vec --arch cpu\n{CELL}").status == "ok"


@pytest.mark.parametrize(("arch", "text"), [(ARCH, SLOW), ("cpu", SLOW_AT_O0)], ids=["nvrtc", "cpu"])
def test_interrupting_ends_a_build(notebook, arch, text):
    output = notebook.run(f"%%cuda --arch {arch}\n{text}", interrupt_after_s=1.5)
    assert output.status == "error"
    assert output.text.rstrip().endswith("KeyboardInterrupt: the build of 'cell' was stopped")
    assert "Traceback" not in output.text
    assert output.seconds < 15  # it takes much longer uninterrupted
    again = notebook.run("jitload.load_inline('cell', cuda_sources='__global__ void k(int n) {}', arch='sm_90a')")
    assert again.status == "ok"


def test_interrupting_ends_a_kernel_on_the_cpu(notebook):
    output = notebook.run("endless[8, 8](torch.zeros(4, dtype=torch.uint32))", interrupt_after_s=0.5)
    assert output.status == "error"
    assert "jitload" not in output.text.replace("test_notebook", "")
    assert output.text.rstrip().endswith("KeyboardInterrupt:")
    assert notebook.run("vec.add[1, 4](ones, sums, 4); sums.tolist()").text == "[2.0, 2.0, 2.0, 2.0]"


def test_what_a_kernel_prints_appears_in_its_cell(notebook):
    for number in range(20):
        assert notebook.run(f"vec.hello[2, 1]({number})").text == f"hello {number}\n" * 2


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("jitload.load_inline('m', cuda_sources='__global__ void k(int* x) { x[0] = y; }', arch='sm_90a')", "CompileE"),
        ("vec.add[1, 1](ones.half(), sums, 4)", "TypeError: add(): argument 'x' must be a float32 CPU tensor"),
        ("vec.add[1](ones, sums, 4)", "TypeError: add[…] has no block"),
        ("vec.add.call(z=1)", "TypeError: add() has no argument 'z'"),
        ("vec.sub", "has no function 'sub'"),
        ("vec.add.occupancy()", "JitLoadError: add() was built for the CPU only"),
    ],
)
def test_the_traceback_has_only_the_cell(notebook, code, message):
    output = notebook.run(code)
    assert output.status == "error"
    assert message in output.text
    assert f"----> 1 {code}" in output.text
    assert output.text.count("line 1\n") == 1, output.text
    assert "File " not in output.text
