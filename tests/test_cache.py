"""The cache as a whole: what a key covers, what a hit does not do, and what becomes of damaged entries."""

import errno
import json
import logging
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from builds import ADD, ARCH, build, kernel, load, python_command, python_env, run_python, work_dirs
from cheap import get, make_key

import jitload
from jitload.cache.entry import find_entry
from jitload.cache.key import CacheKey
from jitload.request.arguments import Call, read_options
from jitload.request.request import make_request
from jitload.request.sources import inline_sources
from jitload.settings import read_settings
from jitload.sources.common import Tools, library_key
from jitload.toolchain.cuda import find_cuda_toolchain


@pytest.fixture
def cache(used_cache, tmp_path, monkeypatch):
    """A cache of its own, in a directory whose name needs quoting, without the modules of the process."""
    directory = tmp_path / "a cache $(of) 'mine'"
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(directory))
    monkeypatch.setattr("jitload.pipeline._modules", {})
    return Path(shutil.copytree(used_cache, directory))


def request(text=ADD, name="m", *, arch=ARCH, functions=None, **flags):
    sources = inline_sources(name, text)
    options = read_options(**{f"extra_{name}": value for name, value in flags.items()})
    return make_request(Call(name, sources, makes="library", functions=functions, options=options, arch=arch))


def key(text=ADD, name="m", *, nvrtc="1", compiler="g++ 1", own="0", **options):
    kit = find_cuda_toolchain(read_settings())._replace(identity=nvrtc)
    return library_key(request(text, name, **options), Tools(kit, compiler), own).digest


# ---- the key ---------------------------------------------------------------------------------------------------

DIFFERENT = [
    {"text": ADD + " "},
    {"text": [ADD, " "]},
    {"text": [ADD[:40], ADD[40:]]},
    {"name": "n"},
    {"functions": "add"},
    {"functions": {"add": "doc"}},
    {"functions": {"add": jitload.Launch(grid=1)}},
    {"functions": {"add": jitload.Launch(grid=1, block=2)}},
    {"functions": {"add": jitload.Launch(pdl=True)}},
    {"arch": "sm_90"},
    {"arch": ["sm_90a", "sm_90"]},
    {"cuda_cflags": ["-DA"]},
    {"cuda_cflags": ["-DA", "-DB"]},
    {"cuda_cflags": ["-DA=1 -1"]},
    {"cuda_cflags": ["-DB", "-DA"]},
    {"include_paths": ["/one"]},
    {"include_paths": ["/one", "/two"]},
    {"nvrtc": "2"},
    {"compiler": "g++ 2"},
    {"own": "1"},
]


def test_each_part_of_a_request_is_in_the_key():
    keys = [key(), *(key(**change) for change in DIFFERENT)]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]
    assert all(len(digest) == 64 for digest in keys)


@pytest.mark.parametrize(
    ("parts", "other_parts"),
    [
        ((("a", ("bc",)),), (("a", ("b", "c")),)),
        ((("a", "b"), ("c", "d")), (("a", "bc"), ("", "d"))),
        ((("ab", "c"),), (("a", "bc"),)),
        ((("a", ()),), (("a", ("",)),)),
        ((("a", ("b",)), ("c", ())), (("a", ("b", "c")),)),
    ],
)
def test_boundaries_are_in_the_key(parts, other_parts):
    assert CacheKey.of("m", parts).digest != CacheKey.of("m", other_parts).digest


def test_the_key_does_not_depend_on_the_working_directory_or_the_cache(tmp_path, monkeypatch):
    before = key()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path))
    assert key() == before


# ---- a hit -----------------------------------------------------------------------------------------------------

LEFT_ALONE = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.mkdir", "os.rename", "os.remove", "fcntl.flock")
HEAVY = (
    *("jinja2", "filelock", "ninja", "torch", "tvm_ffi", "numpy", "cuda", "jitload.cuda.nvrtc"),
    *("jitload.codegen.wrapper", "jitload.element_types"),
)
STRICT_HIT = f"""
import sys
def watch(event, args):
    writes = event == "open" and isinstance(args[2], int) and args[2] & 3
    if event in {LEFT_ALONE!r} or writes:
        raise SystemExit(f"a hit does {{event}} {{args}}")
import jitload, builds
loaded = set(sys.modules)
sys.addaudithook(watch)
print(builds.build(builds.ADD, arch=ARCH, functions={{"add": jitload.Launch(grid=1, block=64)}}))
heavy = set({HEAVY!r}) & (set(sys.modules) - loaded)
assert not heavy, heavy
"""


@pytest.mark.parametrize("arch", [ARCH, "native"])
def test_a_hit_starts_nothing_writes_nothing_and_imports_little(cache, stub_library, arch):
    path = build(ADD, functions={"add": jitload.Launch(grid=1, block=64)})
    gpu = {"LD_LIBRARY_PATH": str(stub_library.parent)}  # the stub's devices are of this architecture
    done = run_python(STRICT_HIT.replace("ARCH", repr(arch)), {"PYTHONDONTWRITEBYTECODE": "1", **gpu})
    assert (done.stdout, done.stderr) == (f"{path}\n", "")


def test_a_moved_cache_still_hits(cache, monkeypatch):
    path = build(ADD)
    moved = cache.with_name("elsewhere")
    cache.rename(moved)
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(moved))
    assert build(ADD) == moved / path.relative_to(cache)
    assert list(load(ADD)) == ["add"]


# ---- damage ----------------------------------------------------------------------------------------------------


def test_a_file_among_the_entries_is_skipped(cache):
    path = build(ADD)
    (path.parent.parent / "0file").write_text("")
    assert build(ADD) == path


def test_a_failed_build_is_not_remembered(cache):
    for _ in range(2):
        with pytest.raises(jitload.errors.CompileError):
            build(kernel("k", "x[0] = nothing;"))
    assert build(kernel("k")).is_file()


def test_an_edit_during_the_build_is_not_trusted(cache, tmp_path, monkeypatch):
    header = tmp_path / "h.h"
    header.write_text("#define NAME one\n")
    text = '#include "h.h"\nextern "C" __global__ void NAME() {}'
    make = jitload.kernels.compilation.compile_for_arch

    def edit_meanwhile(*arguments):
        compiled = make(*arguments)
        header.write_text("#define NAME two\n")
        return compiled

    with monkeypatch.context() as patch:
        patch.setattr("jitload.kernels.compilation.compile_for_arch", edit_meanwhile)
        assert list(load(text, extra_include_paths=[tmp_path])) == ["one"]
    monkeypatch.setattr("jitload.pipeline._modules", {})
    assert list(load(text, extra_include_paths=[tmp_path])) == ["two"]


# ---- what a cache's owner finds --------------------------------------------------------------------------------


def test_an_entry_shows_what_it_was_made_from(cache):
    path = build(ADD, extra_cuda_cflags=["-DN=4"])
    manifest = json.loads((path.parent / "manifest.json").read_text())
    assert manifest["parts"]["options"] == ["-DN=4"]
    assert manifest["parts"]["archs"] == [ARCH]
    assert {"source0.cu", "wrapper.cc", "build.ninja", f"{ARCH}.cubin"} <= set(os.listdir(path.parent))
    assert (path.parent / "source0.cu").read_text() == ADD
    assert work_dirs(cache) == []


def test_long_texts_are_in_the_manifest_by_digest(cache):
    manifest = json.loads((build(ADD + "// " + "x" * 300).parent / "manifest.json").read_text())
    (source,) = manifest["parts"]["sources"]
    assert source.startswith("sha256:")


def test_a_disk_that_refuses_to_sync_is_no_failure(cache, monkeypatch):
    def refuse(_):
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr("os.fsync", refuse)
    path = build(ADD)
    assert build(ADD) == path
    monkeypatch.setattr("os.rename", lambda *_: refuse(0))
    with pytest.raises(jitload.errors.CacheError, match=r"cannot store an entry: .* Set JITLOAD_CACHE_DIR"):
        build(kernel("k"))


def test_a_build_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    synced: list[str] = []
    is_ready, fsync = threading.Event(), os.fsync

    def wait(descriptor: int) -> None:
        assert is_ready.wait(60)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.startswith(str(tmp_path)):  # other tests' entries may still be synced
            synced.append(path)
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", wait)
    entry = get(tmp_path / "empty", make_key())
    assert find_entry(tmp_path / "empty", make_key(), read_settings()).dir == entry.dir
    assert synced == []
    is_ready.set()
    end = time.monotonic() + 60
    while len(synced) < 4 and time.monotonic() < end:
        time.sleep(0.01)
    assert synced == [str(path) for path in (entry.product, entry.dir / "manifest.json", entry.dir, entry.dir.parent)]


@pytest.mark.parametrize("keyword", ["output", "build_directory", ""])
def test_a_path_that_is_returned_is_on_the_disk(cache, tmp_path, monkeypatch, keyword):
    """Whatever loads the path later need not check it, as a hit does."""
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    monkeypatch.setattr("jitload.cache.store._sync_later", lambda _: None)
    path = build(ADD, **({keyword: tmp_path / ("m.so" if keyword == "output" else "m")} if keyword else {}))
    assert path.stat().st_ino in synced


def test_an_entry_is_published_where_no_thread_starts(tmp_path, monkeypatch):
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    assert get(tmp_path / "empty", make_key()).product.exists()


def test_a_name_is_never_used_again(cache):
    path = build(ADD)
    for _ in range(2):
        os.truncate(path, 100)
        path = build(ADD)
    names = sorted(os.listdir(path.parent.parent))
    for name in names:
        if name.endswith(".bad"):
            shutil.rmtree(path.parent.parent / name)
    os.truncate(path, 100)
    assert build(ADD).parent.name not in names


def test_without_a_home_the_cache_is_private_and_said_once(monkeypatch, caplog, tmp_path):
    monkeypatch.delenv("JITLOAD_CACHE_DIR")
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    jitload.cache.entry._private_cache_dir.cache_clear()
    with caplog.at_level(logging.WARNING, "jitload"):
        paths = {build(ADD), build(ADD)}
    jitload.cache.entry._private_cache_dir.cache_clear()
    assert len(paths) == 1
    assert paths.pop().is_relative_to(tmp_path)
    (record,) = caplog.records
    assert record.message.startswith(
        f"this user has no home directory, so this process uses the temporary cache {tmp_path}/jitload-"
    )
    assert record.message.endswith("To keep the cache, set JITLOAD_CACHE_DIR to a directory that can be written.")
    assert not (Path.cwd() / "~").exists()
    shutil.rmtree(tmp_path)


# ---- failures known from the caches of other projects ------------------------------------------------------------


def test_the_key_does_not_depend_on_earlier_builds_or_the_hash_seed():
    code = "import builds; print(builds.build(builds.ADD, 'history'))"
    earlier_builds = "import builds; builds.build(builds.kernel('add', 'x[0] = 1;'), 'history'); "
    paths = {
        run_python(code, {"PYTHONHASHSEED": "1"}).stdout,
        run_python(earlier_builds + code, {"PYTHONHASHSEED": "2"}).stdout,
    }
    assert len(paths) == 1
    assert paths.pop().endswith("history.so\n")


def test_each_build_has_a_directory_of_its_own(cache):
    places = []
    for name in ("one", "two"):
        get(cache, make_key(name), lambda work: places.append(work.dir))
    get(cache, make_key("one"), lambda work: places.append(work.dir))
    assert len(set(places)) == len(places) == 2
    assert not list(cache.rglob(".ninja*"))


def test_a_published_entry_is_never_changed(cache, monkeypatch):
    path = build(ADD)

    def state() -> dict[str, tuple[int, int, int]]:
        return {
            entry.name: (entry.stat().st_ino, entry.stat().st_mtime_ns, entry.stat().st_ctime_ns)
            for entry in os.scandir(path.parent)
        }

    before = state()
    load(ADD)
    monkeypatch.setenv("JITLOAD_MODE", "rebuild")
    assert build(ADD) != path
    assert state() == before


def test_a_build_of_another_process_is_awaited_without_a_limit(cache, monkeypatch):
    """However long the reports have been coming, the lock is waited for."""
    monkeypatch.setattr("jitload.cache.locks._FIRST_REPORT_S", 0.05)
    monkeypatch.setattr("jitload.cache.locks._NEXT_REPORTS_S", 0.05)
    code = f"""
import sys, time, pathlib, cheap
def slow(work):
    print("builds", flush=True)
    time.sleep(1.5)
cheap.get(pathlib.Path({str(cache)!r}), cheap.make_key(), slow)
"""
    with subprocess.Popen(python_command(code), env=python_env(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "builds\n"
        get(cache, make_key(), lambda _: pytest.fail("it was built twice"))


def test_an_import_makes_no_directory(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    env = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    code = "import os; os.environ.pop('JITLOAD_CACHE_DIR'); import jitload, jitload.pipeline, jitload.cli"
    done = run_python(code, env)
    assert (done.returncode, done.stderr, os.listdir(home)) == (0, "", [])


def test_a_build_says_that_it_begins_and_how_long_it_took(caplog):
    with caplog.at_level(logging.INFO, "jitload"):
        build(kernel("said"), "said")
        decision, first, *_, last = [record.message for record in caplog.records if "said" in record.message]
        assert decision.startswith("said is not in the cache: ")
        assert first.startswith("building said in ")
        assert last.startswith("built said in ")
        assert last.endswith(" s")
        caplog.clear()
        build(kernel("said"), "said")
        (decision,) = [record.message for record in caplog.records]
        assert decision.startswith("said is in the cache: ")


def test_an_entry_needs_no_other(cache):
    build(ADD)
    path = build(kernel("k"), "other")
    for directory in cache.iterdir():
        if directory != path.parents[1] and directory.name != ".tools":
            subprocess.run(["rm", "-r", str(directory)], check=True)
    assert build(kernel("k"), "other") == path
    assert list(load(kernel("k"), "other")) == ["k"]
    assert find_entry(cache, make_key(), read_settings()) is None
