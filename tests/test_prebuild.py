"""`prebuild`: many requests at once, the bad ones among them, progress, executors and how many workers there are."""

import inspect
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from builds import ARCH, build, kernel, load

import jitload
from jitload.prebuilding import requests


def request(name: str, **options) -> dict:
    return {"name": name, "cuda_sources": kernel(name), "arch": ARCH} | options


def states(done) -> list[str]:
    return [outcome.state for outcome in done.outcomes]


def test_requests_are_built_then_reused_and_a_call_finds_them(cache):
    requests = [request("one"), request("two"), request("three")]
    first = jitload.prebuild(iter(requests), progress=False)
    assert states(first) == ["built"] * 3
    assert [outcome.name for outcome in first.outcomes] == ["one", "two", "three"]
    assert all(Path(outcome.path).is_relative_to(cache) for outcome in first.outcomes)
    again = jitload.prebuild(requests, progress=False)
    assert states(again) == ["reused"] * 3
    assert str(again).startswith("0 built, 3 reused, 0 failed, in ")
    again.check()
    before = sorted(cache.glob("*-*/*"))
    assert list(load(kernel("two"), name="two")) == ["two"]
    assert sorted(cache.glob("*-*/*")) == before


def test_each_architecture_is_what_native_asks_for_there(cache, monkeypatch):
    """A request that names its architectures keeps them."""
    requests = [{"name": "m", "cuda_sources": kernel("f")}, request("own"), request("two", arch=("sm_80", "sm_90a"))]
    done = jitload.prebuild(requests, archs=("sm_80", "sm_89"), progress=False)
    assert [outcome.arch for outcome in done.outcomes] == ["sm_80", "sm_89", ARCH, "sm_80, sm_90a"]
    assert states(done) == ["built"] * 4
    for outcome in done.outcomes[:2]:
        monkeypatch.setenv("JITLOAD_ARCH", outcome.arch)
        assert jitload.build_inline("m", cuda_sources=kernel("f")) == outcome.path


class _Noting(dict):
    """Keywords that note which of them are read."""

    def __init__(self, fields):
        super().__init__(fields)
        self.seen = set()

    def __getitem__(self, name):
        self.seen.add(name)
        return super().__getitem__(name)

    def get(self, name):
        return self[name]


@pytest.mark.parametrize("function", [jitload.build_inline, jitload.build])
def test_each_keyword_of_a_build_is_heeded(function, monkeypatch, tmp_path):
    """What `build_inline` and `build` make of their keywords is written once more for `prebuild`."""
    (tmp_path / "m.cu").write_text(kernel("f"))
    fields = {"sources": tmp_path / "m.cu"} if function is jitload.build else {"cuda_sources": kernel("f")}
    read = requests._with_defaults
    recorded = []

    def noting(*words):
        recorded.append(_Noting(read(*words)))
        return recorded[0]

    monkeypatch.setattr(requests, "_with_defaults", noting)
    requests.read_request({"name": "m", "arch": ARCH, **fields})
    assert recorded[0].seen == set(inspect.signature(function).parameters) - {"build_directory", "output"}


WRONG = [
    (request("bad", cuda_sources='// nothing\nextern "C" __global__ void f() { nonsense; }'),
     "NVRTC could not compile 'bad.cu' for sm_90a: bad.cu:2: identifier \"nonsense\" is undefined"),
    ({"name": "odd", "flavour": 1}, "TypeError: request 'odd': build_inline() got an unexpected keyword argument"),
    ({"name": "object", "cuda_sources": object(), "arch": ARCH}, "cuda_sources must be"),
    ({"name": "sent", "cuda_sources": lambda: 1, "arch": ARCH}, "the request cannot be sent to another process: "),
    (17, "a request must be a mapping of keywords of build_inline, got int"),
    ({**request("f"), "output": "f.so"}, "prebuild() only fills the cache: leave output= out, or call build_inline()"),
    ({"nmae": "m", "cuda_sources": "s"}, "TypeError: request \"{'nmae': 'm', "),
]  # fmt: skip


def test_one_failure_does_not_stop_the_rest_and_is_told_in_a_line(cache):
    done = jitload.prebuild([*(wrong for wrong, _ in WRONG), request("good")], progress=False)
    assert states(done) == ["failed"] * len(WRONG) + ["built"]
    errors = [outcome.error for outcome in done.failed]
    for error, (_, words) in zip(errors, WRONG, strict=True):
        assert error.startswith(words)
    assert errors[-1].endswith("build_inline() missing a required argument: 'name'")
    assert "nonsense" in "".join(done.failed[0].log.splitlines()[1:])
    assert str(done).splitlines()[0].startswith(f"1 built, 0 reused, {len(WRONG)} failed, in ")
    assert str(done).splitlines()[1] == f"  bad (sm_90a): {errors[0]}"
    with pytest.raises(jitload.JitLoadError, match=f"1 built, 0 reused, {len(WRONG)} failed"):
        done.check()


def test_two_equal_requests_are_one_build(cache):
    assert sorted(states(jitload.prebuild([request("m")] * 4, progress=False))) == ["built", *["reused"] * 3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (({"name": "m"},), "requests must be an iterable of mappings, such as a list, got dict"),
        (([], None, ()), r"archs must be architectures, \('sm_80', 'sm_90a'\), or None, got \(\)"),
        (([], "dask"), r"executor must have submit\(\), as concurrent.futures.Executor does, got 'dask'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, words):
    names = ("requests", "executor", "archs")
    with pytest.raises(jitload.JitLoadError, match=words):
        jitload.prebuild(**dict(zip(names, arguments, strict=False)))


def test_an_executor_builds_for_what_the_callers_environment_names(cache, monkeypatch):
    class Elsewhere(Executor):
        def submit(self, function, /, *args):
            monkeypatch.delenv("TVM_FFI_CUDA_ARCH_LIST")
            future = Future()
            future.set_result(function(*args))
            return future

    monkeypatch.setattr("jitload.toolchain.arch.current_capability", lambda: None)
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "8.0")
    requests = [{"name": "m", "cuda_sources": kernel("f")}, 17]
    outcome, wrong = jitload.prebuild(requests, Elsewhere(), progress=False).outcomes
    assert (outcome.error, wrong.state) == ("", "failed")
    assert Path(outcome.path) == build(kernel("f"), arch="sm_80")


def test_an_executor_that_takes_no_tasks_is_refused_by_name():
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    for wrong in (executor, ThreadPoolExecutor):
        with pytest.raises(jitload.JitLoadError, match=r"the executor <.*ThreadPoolExecutor.* refused a task"):
            jitload.prebuild([request("m")], wrong, progress=False)
