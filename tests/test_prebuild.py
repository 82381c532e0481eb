"""`prebuild` and its command: many requests at once, bad ones among them, progress, executors, and what is shipped."""

import inspect
import json
import os
import stat
import sys
from concurrent.futures import Executor, Future
from pathlib import Path

import pytest
from builds import ARCH, ROOT, build, kernel, load, run_jitload

import jitload
from jitload.cli import main
from jitload.prebuilding import requests
from jitload.prebuilding.files import read_requests


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

    def get(self, name, default=None):
        self.seen |= {name} & self.keys()
        return super().get(name, default)


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


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(cache, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    return cache


@pytest.fixture
def fresh_modules():
    """Let each test have a module `requests_here` of its own."""
    yield
    sys.modules.pop("requests_here", None)


def write_python(home: Path, text: str) -> str:
    path = home / "requests_here.py"
    path.write_text(text)
    return str(path)


def write_json(home: Path, rows: object) -> str:
    path = home / "requests.json"
    path.write_text(json.dumps(rows))
    return str(path)


def row(name: str, **more: object) -> dict:
    return {"name": name, "cuda_sources": kernel(name), **more}


def run(capsys, *words: str) -> tuple[int, str, str]:
    code = main(["prebuild", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_requests_may_have_another_name_or_be_in_a_module(cache, tmp_path, monkeypatch, fresh_modules):
    target = write_python(tmp_path, "MORE = ({'name': 'm'},)\ndef MADE():\n    yield from MORE\n")
    assert read_requests(f"{target}:MORE") == read_requests(f"{target}:MADE") == [{"name": "m"}]
    sys.modules.pop("requests_here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [directory for directory in sys.path if directory not in ("", str(tmp_path))])
    assert read_requests("requests_here:MORE") == [{"name": "m"}]


def test_json_has_a_line_for_each_request(cache, capsys, tmp_path):
    code, out, _ = run(capsys, write_json(tmp_path, [row("one"), {"name": "x"}]), "--arch", ARCH, "--json")
    built, bad = map(json.loads, out.splitlines())
    assert code == 1
    assert (built["name"], built["arch"], built["state"]) == ("one", ARCH, "built")
    assert Path(built["path"]).is_relative_to(cache)
    assert (bad["state"], bad["path"]) == ("failed", "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("REQUESTS = 3", "requests_here:REQUESTS must be a list of mappings, or a function that returns one"),
        ("", "the module requests_here has no 'REQUESTS'"),
        ("raise SystemExit(3)", "the module requests_here cannot be imported (SystemExit: 3)"),
        ("def REQUESTS():\n    return 1 / 0", "requests_here:REQUESTS() failed: ZeroDivisionError: division by zero"),
    ],
)
@pytest.mark.usefixtures("cache", "fresh_modules")
def test_a_python_file_without_requests_is_refused(capsys, tmp_path, text, words):
    code, out, err = run(capsys, write_python(tmp_path, text))
    assert (code, out) == (1, "")
    assert f"\njitload: {tmp_path}/requests_here.py: " in err
    assert words in err
    assert len(err.splitlines()) == 2  # the message, and the code of the error


CONTENTS = {"json.py": "REQUESTS = []\n", "deep.json": "[" * 100_000, "table.json": "{}"}


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere.py", "nowhere.py: there is no file"),
        ("no_such_module", "no_such_module: the module no_such_module cannot be imported"),
        ("a b/$(x)", "'a b/$(x)' names no requests: pass kernels.py, a.module or a record.json"),
        ("json.py", "'json' is also another module ("),
        ("deep.json", "deep.json cannot be read"),
        ("table.json", "table.json must be a list, which `jitload record` writes"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_a_target_without_requests_is_refused(capsys, tmp_path, monkeypatch, target, words):
    monkeypatch.chdir(tmp_path)
    for name, content in CONTENTS.items():
        (tmp_path / name).write_text(content)
    code, _, err = run(capsys, target)
    assert code == 1
    assert words in err


def test_a_bundle_is_what_was_asked_for_and_all_may_read_it(cache, capsys, tmp_path, monkeypatch):
    run(capsys, write_json(tmp_path, [row("other")]), "--arch", ARCH)
    target = write_json(tmp_path, [row("one"), row("two")])
    bundle = tmp_path / "bundle"
    bundle.mkdir(mode=0o700)
    (bundle / "theirs").touch(mode=0o600)
    code, out, _ = run(capsys, target, "--arch", ARCH, "--bundle", str(bundle), "--pack", str(tmp_path / "k.tar.gz"))
    assert code == 0
    assert f"added 2 entries to {bundle}; 0 were there already" in out
    assert f"packed 2 entries into {tmp_path}/k.tar.gz" in out
    assert sorted(path.name.partition("-")[0] for path in bundle.iterdir()) == ["one", "theirs", "two"]
    assert stat.S_IMODE((bundle / "theirs").stat().st_mode) == 0o600
    for path in (bundle, *bundle.rglob("*")):
        if path.name != "theirs":
            assert stat.S_IMODE(path.stat().st_mode) == (0o755 if path.is_dir() else 0o644)
    assert "2 were there already" in run(capsys, target, "--arch", ARCH, "--bundle", str(bundle))[1]
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("JITLOAD_CACHE_PATH", str(bundle))
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    path = jitload.build_inline("one", cuda_sources=kernel("one"), arch=ARCH)
    assert Path(path).is_relative_to(bundle)


def test_the_command_builds_from_another_directory(cache, tmp_path):
    target = write_json(tmp_path, [row("one")])
    words = ("prebuild", os.path.basename(target), "--arch", ARCH)
    done = run_jitload(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 built, 0 reused, 0 failed")
    assert list(cache.glob("one-*/*/one.so"))


@pytest.mark.parametrize("name", ["kernels.py", "triton_fill.py"])
def test_the_examples_are_built(cache, capsys, name):
    pytest.importorskip("triton")
    code, out, _ = run(capsys, str(ROOT / "examples" / "ahead" / name), "--arch", "sm_80", "--arch", "sm_90")
    sys.modules.pop(Path(name).stem, None)
    assert (code, out.partition(", in ")[0]) == (0, "4 built, 0 reused, 0 failed")
    assert run(capsys, str(ROOT / "examples" / "ahead" / name), "--arch", "sm_80,sm_90", "-qj2") == (0, "", "")
    sys.modules.pop(Path(name).stem, None)
