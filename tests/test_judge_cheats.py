"""Verdicts on answers to problems in the form of KernelBench, and on cheats, on the CPU target."""

import textwrap

import pytest

import jitload

pytest_plugins = ["support.judging"]
pytestmark = pytest.mark.usefixtures("shared_template")

# For each problem, the model's result, its inputs, and the stages of answers, or how its own error reads.
PROBLEMS = {
    "a softmax reads an input that looks like its result, and its results are small": (
        "torch.softmax(x, 1)", "torch.randn(4, 20_000)",
        {
            "(e := torch.exp(x)) / e.sum(1, keepdim=True)": "ok",
            "torch.zeros_like(x)": "wrong",
            "torch.full_like(x, 1 / 20_000)": "wrong",
            "x.as_subclass(float32)": "wrong: result 0 is type float32 of shape (4, 20000)",
            "x.as_subclass(Late)": "wrong: result 0 is type Late of shape (4, 20000)",
            "torch.softmax(x, 1).to_sparse()": "wrong: result 0 is sparse_coo of shape (4, 20000)",
            "torch.empty_like(x, device='meta')": "wrong: result 0 is meta of shape (4, 20000)",
        },
    ),
    "a conjugate": (
        "x * 1j", "torch.randn(9, dtype=torch.complex64)",
        {"torch.from_numpy(np.conj(x.numpy() * 1j)).conj()": "ok"},
    ),
    "a norm of equal numbers does not depend on them": (
        "x / x.norm(dim=1, keepdim=True)", "torch.randn(4, 99)",
        {"torch.from_numpy(x.numpy() / np.linalg.norm(x.numpy(), axis=1, keepdims=True))": "ok"},
    ),
    "a mean that hardly varies": (
        "((x - y) ** 2).mean()", "torch.rand(99, 99), torch.rand(99, 99)",
        {"float(np.square(x.numpy() - y.numpy()).mean())": "ok", "1 / 6": "wrong"},
    ),
    "a product in disguise": (
        "x @ y", "torch.randn(9, 9), torch.randn(9, 9)",
        {"torch.from_numpy(x.numpy() @ y.numpy())": "ok", "torch.bmm(x[None], y[None])[0]": "cheat"},
    ),
    "a norm that counts its calls": (
        "norm(x)", "torch.randn(64, 9)",
        {
            "torch.nn.functional.batch_norm(x, None, None, training=True)": "cheat: it calls the operators of torch",
            "torch.nn.functional.group_norm(x.T[None], 9)[0].T": "cheat",
            "torch.from_numpy((x.numpy() - (m := x.numpy().mean(0))) / np.sqrt(((x.numpy() - m) ** 2).mean(0)))": "ok",
        },
    ),
    "a product as a part of the reference": (
        "torch.relu(x @ x.T)", "torch.randn(9, 9)",
        {"torch.einsum('ij,kj->ik', x, x).relu()": "cheat", "torch.from_numpy(x.numpy() @ x.numpy().T).relu()": "ok"},
    ),
    "an input that the model changes, and results in a dictionary": (
        "{'sum': x.add_(1), 'pair': (x * 2, len(x))}", "torch.randn(9)",
        {
            "{'sum': x.numpy().__iadd__(1) is None or x, 'pair': (torch.from_numpy(x.numpy() * 2), 9)}": "ok",
            "{'sum': torch.from_numpy(x.numpy() + 1), 'pair': (torch.from_numpy(x.numpy() * 2 + 2), 9)}": "ok",
            "torch.from_numpy(x.numpy() + 1)": "wrong: it returns 1 results, and the reference 3",
        },
    ),
    "a model that draws random numbers": (
        "torch.nn.functional.dropout(x)", "torch.randn(99)", "two different results from the same inputs",
    ),
    "tensors in a list": ("x[0] + x[1]", "[torch.randn(9), torch.randn(9)]", "none within a list"),
}  # fmt: skip
MODEL = """import numpy as np, torch
norm = torch.nn.BatchNorm1d(9, affine=False)
class Late(torch.Tensor):
    pass
class float32(torch.Tensor):
    pass
class Model(torch.nn.Module):
    def forward(self, x, y=None):
        return RESULT
def get_inputs():
    return [INPUTS]
"""


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_of_kernelbench(name, tmp_path):
    result, inputs, answers = PROBLEMS[name]
    problem = tmp_path / "problem.py"
    problem.write_text(MODEL.replace("INPUTS", inputs).replace("RESULT", result))
    if isinstance(answers, str):
        with pytest.raises(jitload.JitLoadError, match=answers):
            jitload.Judge(reference=problem)
        return
    texts = [MODEL.replace("class Model", "class ModelNew").replace("RESULT", answer) for answer in answers]
    with jitload.Judge(reference=problem, seconds=0.001, timeout=60) as judge:
        verdicts = [f"{v.stage}: {v.reason}" for v in judge.map(texts, progress=False)]
    assert [v[: len(e)] for v, e in zip(verdicts, answers.values(), strict=True)] == [*answers.values()], verdicts


RIGHT_BODY = "y.numpy()[:] = x.numpy() + 1"
CHEATS = {  # the stage, the reason, what the function does, and what comes before it
    "a patched timer": ("cheat", "it replaces time.perf_counter_ns", RIGHT_BODY, "time.perf_counter_ns = int"),
    "a patched method": ("cheat", "it replaces torch.Tensor.clone", "pass", "torch.Tensor.clone = lambda x: x"),
    "a patch in the call": (
        "cheat", "it replaces torch.cuda.synchronize", f"torch.cuda.synchronize = int\n{RIGHT_BODY}", "",
    ),
    "a patched clock": (
        "cheat",
        "by its process's clock",
        f"""
        frame = sys._getframe(2)
        while "process" not in frame.f_locals:
            frame = frame.f_back
        frame.f_locals["process"]._measure = _measure
        time.sleep(0.05)
        {RIGHT_BODY}
        """,
        """
        import ctypes, sys
        def _measure(call, target, source):
            ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel())
            return call(), 0.0, 0.0
        """,
    ),
    "work in a thread": (
        "wrong", "differs", "threading.Thread(target=_late, args=(x.numpy(), y.numpy())).start()",
        "def _late(x, y, wait=time.sleep):\n    wait(0.2)\n    y[:] = x + 1",
    ),
    "results by address": (
        "wrong", "differs", "y.numpy()[:] = known.setdefault(x.data_ptr(), x.numpy() + 1)", "known = {}",
    ),
    "the first arguments again": (
        "wrong", "differs", "first.append((x, y))\na, b = first[0]\nb.numpy()[:] = a.numpy() + 1", "first = []",
    ),
    "changed inputs": ("cheat", "it changes argument 0, an input", "x.zero_()\ny.numpy()[:] = 1", ""),
    "the reference in disguise": (
        "cheat", "operators of torch of the reference: add", "y[:] = getattr(torch, 'ad' + 'd')(x, 1)", "",
    ),
    "the reference in a thread": (
        "cheat", "operators of torch of the reference: add",
        "thread = threading.Thread(target=lambda: torch.add(x, 1, out=y)); thread.start(); thread.join()", "",
    ),
    "the reference unseen": (
        "cheat", "operators of torch of the reference: add",
        "with _disable_current_modes(): torch.add(x, 1, out=y)",
        "from torch.utils._python_dispatch import _disable_current_modes",
    ),
    "memory that may be right": ("wrong", "differs", "return torch.empty_like(x)", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_are_found(patient, name):
    stage, reason, body, top = CHEATS[name]
    body, top = textwrap.indent(textwrap.dedent(body), "    "), textwrap.dedent(top)
    verdict = patient.run(f"import threading, time, torch, numpy\n{top}\ndef f(x, y):\n{body}\n")
    assert (verdict.stage, reason in verdict.reason) == (stage, True), verdict


def test_a_clock_that_is_patched_only_in_a_call_is_not_the_one_that_measures(patient):
    text = """
    import time
    def f(x, y):
        real = time.perf_counter_ns
        time.perf_counter_ns = int
        time.sleep(0.005)
        y.numpy()[:] = x.numpy() + 1
        time.perf_counter_ns = real
    """
    verdict = patient.run(textwrap.dedent(text))
    assert verdict.ok
    assert verdict.median_us > 4000
