"""Verdicts on a GPU: kernels that work, fail and cheat."""

import textwrap
from collections.abc import Iterator

import pytest
import torch
from test_judge import ADD, LAUNCH

import jitload
from jitload.judging.judge import Judge

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]
SIZE = 1 << 20
TOP = f"""
import jitload, time, torch
kernel = jitload.load_inline("add", cuda_sources={ADD!r}, functions={{"add_one": jitload.Launch(
    grid="ceil_div(n, 256)", block=256, args={{"n": "x.numel()"}})}}).add_one
"""


@pytest.fixture(scope="module")
def judge(gpu: None) -> Iterator[Judge]:
    inputs = lambda: (torch.rand(SIZE, device="cuda"), torch.empty(SIZE, device="cuda"))  # noqa: E731
    reference = lambda x, y: x + 1  # noqa: E731
    with jitload.Judge(reference=reference, inputs=inputs, timeout=30, seconds=0.2) as judge:
        yield judge


def test_a_kernel_is_right_and_measured(judge):
    verdict = judge.run(ADD, LAUNCH)
    assert verdict.ok, verdict
    assert verdict.registers > 0
    gb_per_s = 2 * 4 * SIZE / verdict.median_us / 1000  # it reads and writes each element
    assert 50 < gb_per_s < 10_000, verdict  # no GPU's memory is faster
    assert verdict.speedup == pytest.approx(verdict.reference_us / verdict.median_us)


def test_the_time_that_python_needs_is_in_neither_time(judge):
    """The reference does the same. Another program may use the GPU meanwhile, so there are five tries."""
    source = f"{TOP}\ndef f(x, y):\n    for _ in range(2000):\n        pass\n    kernel(x, y)"
    speedups = []
    while not speedups or not 0.3 < speedups[-1] < 3:
        assert len(speedups) < 5, speedups
        speedups.append(judge.run(source).speedup)


@pytest.mark.parametrize(
    ("change", "stage"),
    [
        (("if (i < n)", "if (i < n / 2)"), "wrong"),
        (("y[i]", "((float*)8)[i]"), "memory"),
        (("y[i]", "y[i + 512]"), "memory"),
        (("if (i < n)", "while (((volatile float*)y)[i] < 1e30f)"), "hang"),
        (("if (i < n)", "__trap(); if (i < n)"), "launch"),
    ],
)
def test_broken_kernels_cost_only_themselves(judge, monkeypatch, change, stage):
    monkeypatch.setattr(judge, "_timeout", 10.0)
    verdict = judge.run(ADD.replace(*change), LAUNCH)
    assert verdict.stage == stage, verdict
    assert judge.run(ADD, LAUNCH).ok


CHEATS = {
    "another stream": (
        ("wrong", "cheat"), "with torch.cuda.stream(side):\n    kernel(x, y)", "side = torch.cuda.Stream()",
    ),
    "another stream after a pause": (
        ("wrong",), "time.sleep(0.02)\nwith torch.cuda.stream(side):\n    kernel(x, y)", "side = torch.cuda.Stream()",
    ),
    "another stream that becomes the current one": (
        ("wrong", "cheat"), "torch.cuda.set_stream(side)\nkernel(x, y)", "side = torch.cuda.Stream()",
    ),
    "another stream that only waits": (
        ("wrong", "cheat"),
        """
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            kernel(x, y)
        """,
        "side = torch.cuda.Stream()",
    ),
    "another stream that waits": (
        ("wrong", "cheat"),
        """
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(10_000_000)
            kernel(x, y)
        """,
        "side = torch.cuda.Stream()",
    ),
    "patched events": (("cheat",), "kernel(x, y)", "torch.cuda.Event.elapsed_time = lambda *_: 0.001"),
    "a patched driver": (
        ("cheat",), "kernel(x, y)", "import cuda.bindings.driver as d\nd.cuEventElapsedTime = lambda *_: (0, 0.0)",
    ),
    "a graph of the first call": (
        ("wrong", "memory"),
        """
        if not graphs:
            kernel(x, y)
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[0]):
                kernel(x, y)
        graphs[0].replay()
        """,
        "graphs = []",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_are_found(judge, name):
    stages, body, top = CHEATS[name]
    body, top = textwrap.indent(textwrap.dedent(body), "    "), textwrap.dedent(top)
    verdict = judge.run(f"{TOP}\n{top}\ndef f(x, y):\n{body}\n")
    assert verdict.stage in stages, verdict


@pytest.mark.parametrize(
    "body",
    [
        "torch.cuda.synchronize()\nkernel(x, y)\ntorch.cuda.synchronize()",
        "if float(x[0]) >= 0:\n    kernel(x, y)",
        """
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            kernel(x, y)
        torch.cuda.current_stream().wait_stream(side)
        """,
    ],
    ids=["waits for the device", "reads an input", "another stream that is waited for"],
)
def test_candidates_that_synchronize_are_right(judge, body):
    text = textwrap.indent(textwrap.dedent(body), "    ")
    verdict = judge.run(f"{TOP}\nside = torch.cuda.Stream()\ndef f(x, y):\n{text}\n")
    assert verdict.ok, verdict


def test_lines_that_persist_in_the_l2_cache_do_not_help(judge):
    """They are reset before each call, so the time is that of the plain kernel."""
    persist = """
    from cuda.bindings import driver
    driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 1 << 24)
    """
    plain = judge.run(f"{TOP}\ndef f(x, y):\n    kernel(x, y)")
    persisting = judge.run(f"{TOP}{textwrap.dedent(persist)}\ndef f(x, y):\n    kernel(x, y)")
    assert plain.ok, plain
    assert persisting.ok, persisting
    assert persisting.median_us > 0.5 * plain.median_us


def test_a_triton_kernel():
    pytest.importorskip("triton")
    source = """
    import triton
    import triton.language as tl

    @triton.jit
    def add_one(x, y, n, B: tl.constexpr):
        at = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)
    """
    keywords = {"signature": "*fp32, *fp32, i32", "constexprs": {"B": 1024}, "grid": "ceil_div(n, B)"}
    with jitload.Judge(
        reference=lambda x, y, n: x + 1,
        inputs=lambda: (torch.rand(SIZE, device="cuda"), torch.empty(SIZE, device="cuda"), SIZE),
        timeout=60,
        seconds=0.1,
    ) as judge:
        verdict = judge.run(textwrap.dedent(source), {"add_one": keywords})
    assert verdict.ok, verdict


def test_an_answer_that_launches_a_triton_kernel(tmp_path):
    pytest.importorskip("triton")
    problem = """
    import torch

    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x) * 2

    def get_inputs():
        return [torch.rand(1000) - 0.5]

    def get_init_inputs():
        return []
    """
    answer = """
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def relu(x, y, n, B: tl.constexpr):
        at = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(y + at, tl.maximum(tl.load(x + at, mask=at < n), 0.0) * 2, mask=at < n)

    class ModelNew(torch.nn.Module):
        def forward(self, x):
            y = torch.empty_like(x)
            relu[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), B=256)
            return y
    """
    (tmp_path / "problem.py").write_text(textwrap.dedent(problem))
    with jitload.Judge(reference=tmp_path / "problem.py", timeout=60, seconds=0.1) as judge:
        verdict = judge.run(textwrap.dedent(answer))
    assert verdict.ok, verdict
