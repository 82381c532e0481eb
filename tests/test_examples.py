"""Every example runs, checks itself and fits on a page, with a GPU and without one."""

import pytest
import torch
from builds import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RESULTS = {
    "cuda_graph": "graph of 8 launches, replayed 3 times: cos(x) = x at 0.739085",
    "hand_written_wrapper": "axpy: equal to torch's result on 100000 elements",
    "judge": "judge: one of 4 candidates is right",
    "kernel_library": "scale: equal to torch's results in three dtypes",
    "layer_norm": "torch.bfloat16: equal to torch's result on (512, 4096)",
    "matmul": "matmul: equal to torch's result on (700, 513) @ (513, 900)",
    "measure": "add_one: equal to torch's result on 1048576 elements, and measured; add_two: refused",
    "prebuild": "sum_rows: equal to torch's results for rows of 1, 2, 3 and 4",
    "program": "saxpy: equal to torch's result on 100000 elements",
    "ptx": "fast_tanh: within 0.001 of torch's on 100000 elements",
    "quickstart": "axpy: equal to torch's result on 100000 elements",
    "ship_triton_library": "scale: equal to torch's result on 100000 elements",
    "struct_parameter": "smooth: equal to torch's convolution, mirrored and not",
    "template_kernel": "all five: equal to torch's results",
    "triton_attention": "attention: equal to torch's result on 12 heads of 1000 rows, causal and not",
    "triton_square": "square: equal to torch's result on 100001 elements",
}

# Without a GPU these run on the CPU. The others are about a GPU's code: cubins, PTX, graphs, Triton, C++ that launches.
ON_THE_CPU = {"judge", "layer_norm", "matmul", "measure", "quickstart", "struct_parameter", "template_kernel"}


def test_every_example_is_known_here():
    assert [path.stem for path in EXAMPLES] == sorted(RESULTS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_without_a_gpu_it_describes_its_kernels_and_runs_them_where_it_can(path, run_page):
    if "triton" in path.stem:
        pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    run = run_page(path)
    assert run.status == "0", run.output
    lines = run.output.splitlines()
    assert path.stem == "judge" or any(" registers" in line for line in lines)
    assert lines[-1] == (RESULTS[path.stem] if path.stem in ON_THE_CPU else "no GPU here: launching needs one")


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_with_a_gpu_it_launches_and_checks(path, run_page):
    if "triton" in path.stem:
        pytest.importorskip("triton")
    run = run_page(path)
    assert (run.status, run.output.splitlines()[-1]) == ("0", RESULTS[path.stem])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_on_a_page(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    assert max(map(len, text.splitlines())) <= 120
