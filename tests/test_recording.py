"""`JITLOAD_RECORD` and `jitload record`: a run is recorded, built from its record, and runs from that cache alone."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builds import ADD, ARCH, kernel, load, run_jitload

import jitload
from jitload import nvrtc
from jitload.cli import main
from jitload.errors import CacheError, warn_once
from jitload.prebuilding.requests import read_request
from jitload.request import recording

BY_HAND = "#include <tvm/ffi/function.h>\nint64_t twice(int64_t x) { return 2 * x + N; }"
LAUNCH = jitload.Launch(grid=("ceil_div(n, 256)", 1), block=256, args={"n": "x.numel()"}, pdl=True, doc="Scale.")
SCALE = "template <class T> __global__ void scale(T* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= N; }\n"

TUNED = {"f": jitload.Launch(kernel="f<{B}>", grid=1, block="B", tune=jitload.Tune(B=(32, 64), key="n"))}


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Record into a file, in a process that has loaded nothing."""
    path = tmp_path / "record.json"
    monkeypatch.setenv("JITLOAD_RECORD", str(path))
    monkeypatch.setattr("jitload.pipeline._modules", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    warn_once.cache_clear()
    return path


def use_cache(monkeypatch, path: Path) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(path))
    monkeypatch.setattr("jitload.pipeline._modules", {})


def run_calls(source: Path) -> None:
    """Load a library of each kind that has a text: from texts and files, with launches, options and cubins."""
    options = {"arch": ARCH, "extra_cuda_cflags": ["-DN=4"]}
    launches = {"scale": [jitload.Launch(kernel="scale<float>")], "scale_h": jitload.Launch(kernel="scale<double>")}
    jitload.load_inline("templates", cuda_sources=[SCALE, kernel("f")], functions=launches, **options)
    jitload.load("file", sources=str(source), functions={"scale": LAUNCH}, **options)
    jitload.load_inline("plain", cuda_sources=ADD)
    cubin = nvrtc.nvrtc_compile(kernel("g"), name="g.cu", arch=ARCH)
    jitload.load_inline("cubins", embed_cubin={"g": cubin}, functions={"g": jitload.Launch(signature="(float* x)")})


def test_a_run_is_built_from_its_record_and_then_only_loaded(record, tmp_path, monkeypatch, capsys):
    source = tmp_path / "scale.cu"
    source.write_text(SCALE.replace("template <class T> ", "").replace("T*", "float*"))
    monkeypatch.setenv("JITLOAD_ARCH", ARCH)
    monkeypatch.setenv("JITLOAD_LIBRARY", "never")
    monkeypatch.chdir(tmp_path)
    use_cache(monkeypatch, tmp_path / "first")
    run_calls(Path("scale.cu"))
    run_calls(Path("scale.cu"))  # each call is in the list once
    assert [row["name"] for row in json.loads(record.read_text())] == ["templates", "file", "plain", "cubins"]

    monkeypatch.delenv("JITLOAD_RECORD")
    monkeypatch.delenv("JITLOAD_ARCH")  # `native` is what it was in the run
    source.write_text("the record has the text")
    use_cache(monkeypatch, tmp_path / "second")
    assert main(["prebuild", "--from", str(record), "--quiet", "-j", "2"]) == 0
    monkeypatch.setenv("JITLOAD_ARCH", ARCH)
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    source.write_text(SCALE.replace("template <class T> ", "").replace("T*", "float*"))
    run_calls(Path("scale.cu"))
    with pytest.raises(CacheError):
        jitload.load_inline("plain", cuda_sources=ADD, arch="sm_80")

    monkeypatch.delenv("JITLOAD_MODE")
    assert main(["prebuild", "--from", str(record), "--arch", "sm_80", "--json"]) == 1
    done = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["name"], row["arch"], row["state"]) for row in done] == [
        ("templates", ARCH, "reused"), ("file", ARCH, "reused"), ("plain", "sm_80", "built"),
        ("cubins", "sm_80", "failed"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"cpp_sources": BY_HAND, "functions": "twice", "extra_cflags": ["-DN=1"], "extra_ldflags": ["-lm"]},
        {"cuda_sources": ADD, "arch": "cpu", "sanitize": "address", "debug": True, "gpu_check": False},
        {"cuda_sources": ADD, "arch": ("sm_80", ARCH), "extra_include_paths": ["include"], "isolate": True},
        {"cuda_sources": ADD, "functions": {"add": "Add.", "again": jitload.Launch(kernel="add")}, "kind": "device"},
        {"cuda_sources": "template <int B> __global__ void f(float* x) {}", "functions": TUNED, "tuned": "tuned.json"},
        {"cpp_sources": BY_HAND, "functions": {"twice"}, "embed_cubin": {"one": b"\0\xff"}},
    ],
)
def test_a_call_is_the_same_after_json(options, monkeypatch, record, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned.json").write_text("{}")
    read_request({"name": "m", "arch": ARCH, **options})
    (item,) = json.loads(record.read_text())
    assert item["name"] == "m"


def test_what_cannot_be_repeated_is_a_warning(record, cache, caplog):
    cubin = jitload.compile_cubin(kernel("f"), arch=ARCH)  # knows types that its bytes alone do not have
    jitload.load_inline("typed", embed_cubin={"f": cubin})
    assert "module 'typed' is not recorded, because its call cannot be repeated from JSON" in caplog.text
    assert not record.exists()


def test_processes_share_a_file(record, tmp_path):
    def add(number: int) -> None:
        recording._add_line(str(record), b'{"name": "%d"}' % (number % 5))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    assert sorted(row["name"] for row in json.loads(record.read_text())) == list("01234")
    record.unlink()  # a process that still runs begins a new list
    recording._add_line(str(record), b'{"name": "5"}')
    recording._add_line(str(record), b'{"name": "0"}')
    assert [row["name"] for row in json.loads(record.read_text())] == ["5", "0"]


@pytest.mark.parametrize("text", ["print('serve')\n", "[]"])
def test_a_file_of_another_kind_is_left_alone(record, cache, text):
    record.write_text(text)
    with pytest.raises(jitload.JitLoadError, match=r"JITLOAD_RECORD=.*record\.json is a file of another kind"):
        load(ADD)
    assert record.read_text() == text


def test_the_command_runs_a_program(tmp_path, capsys):
    code = "import os, sys; print(os.environ['JITLOAD_RECORD'], sys.argv[1:]); sys.exit(7)"
    program = (sys.executable, "-c", code, "-o", "--", "x")
    done = run_jitload("record", "-o", "here.json", "--", *program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (7, f"{tmp_path / 'here.json'} ['-o', '--', 'x']\n")
    assert main(["record"]) == 2
    assert main(["record", "--", "/no/such/program"]) == 1
    assert "/no/such/program cannot be run" in capsys.readouterr().err
    assert main(["prebuild"]) == 2


def test_triton_kernels_are_recorded(record, cache, tmp_path):
    triton = pytest.importorskip("triton")
    import torch
    import triton_kernels
    from triton_support import ADD as SIGNATURE

    words = {"grid": "ceil_div(n, BLOCK)", "arch": ARCH}
    jitload.load_triton("ops", triton_kernels.vector_add, signature=SIGNATURE, constexprs={"BLOCK": 256}, **words)
    x = torch.empty(64, device="meta")
    jitload.load_triton("args", triton_kernels.vector_add, x, x, x, 1, BLOCK=128, num_warps=8, **words)
    block = triton.language.constexpr(128)
    jitload.load_triton("args", triton_kernels.vector_add, x, x[1:], x, 33, BLOCK=block, **words)
    jitload.load_triton("default", triton_kernels.with_a_default_of_an_option, x, grid=1, arch=ARCH)
    jitload.load_triton("by position", triton_kernels.with_a_default_of_an_option, x, 4, grid=1, arch=ARCH)
    from test_triton_request import load_tuned_add, write_choices

    load_tuned_add(tuned=write_choices(tmp_path / "tuned.json", {7: 1}), nearest="log2")
    (tmp_path / "tuned.json").unlink()  # the record has the measurements
    rows = json.loads(record.read_text())
    assert [row["name"] for row in rows] == ["ops", "args", "args", "default", "by position", "m", "m"]
    assert [bool(row["tuned"]) for row in rows[-2:]] == [False, True]
    keys = sorted(cache.glob("*-*"))
    jitload.prebuild(rows, progress=False, jobs=1).check()  # links the libraries of the same keys
    assert sorted(cache.glob("*-*")) == keys
