"""`prebuild` with Triton kernels: by name, by object, of a program itself; what goes wrong; what a call finds later."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

import triton
import triton_kernels as kernels
from builds import python_env
from test_prebuild import request, states
from triton_kernels import tuned_add
from triton_support import ADD, ARCH

import jitload

GRID = "ceil_div(n, BLOCK)"
ADDED = {"name": "ops", "kernel": "triton_kernels:vector_add", "signature": ADD, "constexprs": {"BLOCK": 256}}


def entries(cache: Path) -> list[Path]:
    return sorted(cache.glob("*-*/*/manifest.json"))


def test_triton_kernels_beside_cuda_source_and_a_call_finds_them(cache):
    by_object = {**ADDED, "name": "by_object", "kernel": kernels.vector_add, "grid": GRID, "num_warps": 8}
    bad = {**ADDED, "name": "bad", "constexprs": {}}
    done = jitload.prebuild([ADDED, request("one"), bad, by_object], archs=(ARCH,), progress=False)
    assert states(done) == ["built", "built", "failed", "built"], str(done)
    assert done.failed[0].error.startswith("kernel 'vector_add'")
    before = entries(cache)
    assert list(jitload.load_triton(**{**ADDED, "kernel": kernels.vector_add}, arch=ARCH)) == ["vector_add"]
    options = {"signature": ADD, "constexprs": {"BLOCK": 256}, "grid": GRID, "num_warps": 8}
    jitload.load_triton("by_object", kernels.vector_add, arch=ARCH, **options)
    assert entries(cache) == before


def test_variants_configurations_and_example_arguments(cache):
    torch = pytest.importorskip("torch")
    x = torch.empty(1024, device="meta")
    requests = [
        {**ADDED, "name": "variants", "constexprs": {}, "variants": [{"BLOCK": 128}, {"BLOCK": 256}]},
        {"name": "tuned", "kernel": tuned_add, "signature": ADD, "variants": "all"},
        {"name": "args", "kernel": kernels.vector_add, "args": (x, x, x, 1024), "constexprs": {"BLOCK": 256}},
    ]
    done = jitload.prebuild(requests, archs=(ARCH,), progress=False)
    assert states(done) == ["built"] * 3, str(done)
    before = entries(cache)
    jitload.load_triton("args", kernels.vector_add, x, x, x, 1024, constexprs={"BLOCK": 256}, arch=ARCH)
    jitload.load_triton("tuned", tuned_add, signature=ADD, variants="all", arch=ARCH)
    assert entries(cache) == before


_PROGRAM = """
import json, os, sys
sys.modules["torch"] = None  # it takes seconds to import
import triton, triton.language as tl
import jitload

@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)

ADD = {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "out_ptr": "*fp32:16", "n": "i32"}
SAME = {"signature": ADD, "constexprs": {"BLOCK": 256}}
requests = [
    {"name": "main", "kernel": add, **SAME},
    {"name": "by_name", "kernel": "__main__:add", **SAME},
    {"name": "plain", "cuda_sources": 'extern "C" __global__ void f(float* x) {}', "arch": "sm_90a"},
    {"name": "wrong", "kernel": add, "signature": {}, "constexprs": {"BLOCK": 256}},
    {"name": "grid", "kernel": "triton_kernels:vector_add", **SAME, "grid": lambda META: (META["n"],)},
]
done = jitload.prebuild(requests, archs=("sm_90",), progress=False)
before = sorted(os.listdir(os.environ["JITLOAD_CACHE_DIR"]))
jitload.load_triton("main", add, **SAME, arch="sm_90")
assert sorted(os.listdir(os.environ["JITLOAD_CACHE_DIR"])) == before
print(json.dumps([[o.name, o.state, o.error] for o in done.outcomes]))
"""


def test_a_kernel_of_the_program_itself_is_built_by_the_program(cache, tmp_path):
    (tmp_path / "program.py").write_text(_PROGRAM)
    env = python_env({"PYTHONPATH": os.pathsep.join(sys.path)})
    command = [sys.executable, str(tmp_path / "program.py")]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    rows = json.loads(run.stdout)
    assert [state for _, state, _ in rows] == ["built", "built", "built", "failed", "built"], rows
    assert "x_ptr" in rows[3][2]


def test_a_kernel_that_a_module_does_not_name_is_built_here(cache):
    same = triton.jit(kernels.vector_add.fn)  # not the object that an import gives
    done = jitload.prebuild([{**ADDED, "kernel": same}], archs=(ARCH,), progress=False)
    assert states(done) == ["built"], str(done)


NO_KERNELS = {
    "vector_add": "kernel='vector_add' must be module:name, such as 'my_package.kernels:add'",
    "nowhere.at_all:f": "kernel='nowhere.at_all:f': the module nowhere.at_all cannot be imported",
    "triton_kernels:nothing": "kernel='triton_kernels:nothing': the module triton_kernels has no 'nothing'",
    "../x:f": "kernel='../x:f' must be module:name",
    "os:getcwd": "a Triton kernel is a @triton.jit function or what a launch",
    17: "a Triton kernel is a @triton.jit function or what a launch",
}


def test_a_request_that_cannot_be_built_fails_alone(cache):
    requests = [
        *({**ADDED, "kernel": kernel} for kernel in NO_KERNELS),
        {**ADDED, "constexprs": {"BLOCK": 100}},
        request("good"),
        {"name": "odd", "kernel": "triton_outer:by_an_object", "signature": {"x_ptr": "*i32"}},
    ]
    done = jitload.prebuild(requests, archs=(ARCH,), progress=False)
    assert [outcome.state == "built" for outcome in done.outcomes] == [each == request("good") for each in requests]
    *wrong, refused = done.failed[: len(NO_KERNELS) + 1]
    for outcome, words in zip(wrong, NO_KERNELS.values(), strict=True):
        assert words in outcome.error
    (line,) = (line for line in str(done).splitlines() if "power of 2" in line)
    assert line.startswith("  ops (sm_90): Triton could not compile 'vector_add': ")
    assert line.endswith(refused.error)
    for odd in done.failed[len(NO_KERNELS) + 1 :]:
        assert odd.error.startswith("'odd' cannot be cached, because its key would be incomplete: ")
