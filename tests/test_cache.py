"""The cache as a whole: what a key covers, what a hit does not do, and what becomes of damaged entries."""

import errno
import json
import logging
import os
import shutil
from pathlib import Path

import pytest
from builds import ADD, ARCH, build, kernel, load, run_python, work_dirs

import jitload
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


DIFFERENT = [
    {"text": ADD + " "},
    {"text": [ADD, " "]},
    {"text": [ADD[:40], ADD[40:]]},
    {"name": "n"},
    {"functions": "add"},
    {"functions": {"add": "doc"}},
    {"functions": {"add": jitload.Launch(grid=1, block=2)}},
    {"functions": {"add": jitload.Launch(pdl=True)}},
    {"arch": "sm_90"},
    {"arch": ["sm_90a", "sm_90"]},
    {"cuda_cflags": ["-DA", "-DB"]},
    {"cuda_cflags": ["-DA=1 -1"]},
    {"cuda_cflags": ["-DB", "-DA"]},
    {"include_paths": ["/one", "/two"]},
    {"nvrtc": "2"},
    {"compiler": "g++ 2"},
    {"own": "1"},
]


def test_each_part_of_a_request_is_in_the_key_and_the_working_directory_is_not(tmp_path, monkeypatch):
    keys = [key(), *(key(**change) for change in DIFFERENT)]
    assert len(set(keys)) == len(keys)
    monkeypatch.chdir(tmp_path)
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


def test_an_entry_shows_what_it_was_made_from(cache):
    path = build(ADD, extra_cuda_cflags=["-DN=4"])
    manifest = json.loads((path.parent / "manifest.json").read_text())
    assert manifest["parts"]["options"] == ["-DN=4"]
    assert manifest["parts"]["archs"] == [ARCH]
    assert {"source0.cu", "wrapper.cc", "build.ninja", f"{ARCH}.cubin"} <= set(os.listdir(path.parent))
    assert (path.parent / "source0.cu").read_text() == ADD
    assert work_dirs(cache) == []


def test_a_disk_that_refuses_to_sync_is_no_failure(cache, monkeypatch):
    def refuse(path, *_):
        raise OSError(errno.EINVAL, "no", path)

    monkeypatch.setattr("os.fsync", refuse)
    path = build(ADD)
    assert build(ADD) == path
    monkeypatch.setattr("os.rename", refuse)
    with pytest.raises(jitload.errors.CacheError, match=r"cannot store an entry: .* Set JITLOAD_CACHE_DIR"):
        build(kernel("k"))


@pytest.mark.parametrize("keyword", ["output", "build_directory", ""])
def test_a_path_that_is_returned_is_on_the_disk(cache, tmp_path, monkeypatch, keyword):
    """Whatever loads the path later need not check it, as a hit does."""
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    path = build(ADD, **({keyword: tmp_path / ("m.so" if keyword == "output" else "m")} if keyword else {}))
    assert path.stat().st_ino in synced


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
    assert f"no home directory, so this process uses the temporary cache {tmp_path}/jitload-" in record.message
    assert not (Path.cwd() / "~").exists()
    shutil.rmtree(tmp_path)


def test_the_key_does_not_depend_on_earlier_builds_or_the_hash_seed():
    code = "import builds; print(builds.build(builds.ADD, 'history'))"
    earlier_builds = "import builds; builds.build(builds.kernel('add', 'x[0] = 1;'), 'history'); "
    paths = {
        run_python(code, {"PYTHONHASHSEED": "1"}).stdout,
        run_python(earlier_builds + code, {"PYTHONHASHSEED": "2"}).stdout,
    }
    assert len(paths) == 1
    assert paths.pop().endswith("history.so\n")


def test_an_import_makes_no_directory(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    env = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    code = "import os; os.environ.pop('JITLOAD_CACHE_DIR'); import jitload, jitload.pipeline, jitload.cli"
    done = run_python(code, env)
    assert (done.returncode, done.stderr, os.listdir(home)) == (0, "", [])
