"""Entries on machines that lack what could build them: no C++ compiler, no NVRTC; and what must be the same even so."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import pytest
from builds import ADD, ARCH, EXPORT, ROOT, build, kernel, load
from test_cache_tiers import package

import jitload
from jitload import errors
from jitload.cache import tiers
from jitload.cache.key import CacheKey
from jitload.cache.matching import differing_parts
from jitload.cache.tiers import BUNDLES_DIR
from jitload.cli import main
from jitload.errors import CacheError, ToolchainError
from jitload.settings import read_settings
from jitload.toolchain import cuda

BY_HAND = "int64_t twice(int64_t x) { return 2 * x; }"


@pytest.fixture
def lose(monkeypatch):
    """Take tools away: the compiler with the PATH, NVRTC by finding none."""

    def take(*tools: str) -> None:
        if "compiler" in tools:
            monkeypatch.setenv("PATH", "/nowhere")
            monkeypatch.delenv("CXX", raising=False)
        if "nvrtc" in tools:
            monkeypatch.setattr(cuda, "_wheel_toolchains", lambda: iter(()))
            monkeypatch.setattr(cuda, "_toolkits", lambda _: iter(()))
            cuda._find_cuda_toolchain.cache_clear()

    yield take
    cuda._find_cuda_toolchain.cache_clear()


def rewrite(path: Path, **parts: str) -> None:
    """Let an entry say that other tools made it, under a key of its own."""
    leaf = path.parent
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:40] + leaf.parent.name[-24:]
    copied = leaf.parent.with_name(f"{leaf.parent.name[:-64]}{key}") / leaf.name
    shutil.copytree(leaf, copied)
    manifest = json.loads((leaf / "manifest.json").read_text())
    created = manifest["created"] + (1 if "newer" in parts else -1)
    parts.pop("newer", None)
    manifest = {**manifest, "key": key, "created": created, "parts": {**manifest["parts"], **parts}}
    (copied / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("mode", ["load-only", "auto"])
@pytest.mark.parametrize("tools", [("compiler",), ("nvrtc",), ("compiler", "nvrtc")])
def test_an_entry_is_found_without_the_tools(cache, lose, monkeypatch, mode, tools):
    path = build(ADD, "vec")
    build(kernel("f"), "vec")
    before = sorted(cache.rglob("*"))
    lose(*tools)
    monkeypatch.setenv("JITLOAD_MODE", mode)
    assert build(ADD, "vec") == path
    assert list(load(ADD, "vec")) == ["add"]
    assert load(ADD, "vec") is load(ADD, "vec")
    assert sorted(cache.rglob("*")) == before


def test_the_newest_is_taken_of_several_that_differ_in_their_tools_alone(cache, lose, caplog):
    path = build(ADD, "vec")
    rewrite(path, nvrtc="nvidia_cuda_nvrtc-13.9", newer="")
    rewrite(path, nvrtc="nvidia_cuda_nvrtc-13.2")
    lose("nvrtc")
    with caplog.at_level("INFO", logger="jitload"):
        product = build(ADD, "vec")
    assert json.loads((product.parent / "manifest.json").read_text())["parts"]["nvrtc"] == "nvidia_cuda_nvrtc-13.9"
    assert "is used although other tools built it: nvidia_cuda_nvrtc-13.9" in caplog.text


@pytest.mark.parametrize(
    ("text", "options"),
    [(kernel("f"), {}), (ADD, {"extra_cuda_cflags": ["-DN=5"]}), (ADD, {"extra_cflags": ["-O0"], "arch": "cpu"})],
)
def test_another_request_is_a_miss(cache, lose, monkeypatch, text, options):
    build(ADD, "vec")
    lose("compiler", "nvrtc")
    with pytest.raises(ToolchainError, match=r"NVRTC was not found|no C\+\+ compiler"):
        build(text, "vec", **options)
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    with pytest.raises(CacheError, match="does not build it") as caught:
        build(text, "vec", **options)
    lines = caught.value.message().splitlines()
    unknown = "nvrtc, compiler, cpu" if options.get("arch") == "cpu" else "nvrtc"
    assert lines[-2].endswith(f"lacks tools, so these parts of the key are not compared: {unknown}.")
    assert not any(line.strip().startswith(("nvrtc:", "compiler:")) for line in lines)


def test_a_tool_that_is_here_is_compared(cache, lose, monkeypatch):
    path = build(ADD, "vec")
    rewrite(path, nvrtc="nvidia_cuda_nvrtc-13")
    shutil.rmtree(path.parent.parent)
    lose("compiler")
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    with pytest.raises(CacheError, match="nvrtc: nvidia_cuda_nvrtc-13 and "):
        build(ADD, "vec")


def test_headers_are_looked_at(cache, lose, tmp_path, monkeypatch):
    (tmp_path / "n.h").write_text("#define N 1\n")
    text = '#include "n.h"\n' + kernel("f", "x[0] = N;")
    path = build(text, "vec", extra_include_paths=[tmp_path])
    lose("compiler", "nvrtc")
    assert build(text, "vec", extra_include_paths=[tmp_path]) == path
    (tmp_path / "n.h").write_text("#define N 2\n")
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    with pytest.raises(CacheError, match=f"Changed since the build: {tmp_path}/n.h"):
        build(text, "vec", extra_include_paths=[tmp_path])


SPOIL = {
    "cannot be used (vec.so has 10 bytes": lambda path: os.truncate(path, 10),
    "is not trusted: everyone can write to": lambda path: path.parent.chmod(0o777),
}


@pytest.mark.parametrize("words", SPOIL)
def test_damage_and_untrusted_places_are_found_without_tools_too(cache, lose, caplog, words):
    SPOIL[words](build(ADD, "vec"))
    lose("compiler")
    with pytest.raises(ToolchainError):
        build(ADD, "vec")
    assert words in caplog.text
    cache.chmod(0o777)
    with pytest.raises(CacheError, match="chmod"):
        build(ADD, "vec")


def test_options_in_the_command_of_the_compiler_are_what_was_asked_for(monkeypatch):
    key = CacheKey.of("vec", ())._replace(unknown_parts=("compiler",))
    for command, differs in (("g++ -DA", ()), ("g++ -DB", ("compiler",)), ("g++", ())):
        monkeypatch.setenv("JITLOAD_CXX", command)
        assert differing_parts({}, {"compiler": "gcc version 12\n'-DA'"}, key, read_settings()) == differs


@pytest.mark.usefixtures("cache")
def test_native_code_is_for_the_processor_that_it_was_made_for(lose, monkeypatch, tmp_path):
    (tmp_path / "get.c").write_text(f"#define VALUE 1\n{EXPORT}")

    def build_native() -> str:
        return jitload.build("m", sources=tmp_path / "get.c", extra_cflags=["-march=native"])

    path = build_native()
    lose("compiler")
    assert build_native() == path
    for module in ("sources.common", "cache.matching"):
        monkeypatch.setattr(f"jitload.{module}.cpu_identity", lambda: "another processor")
    with pytest.raises(ToolchainError):
        build_native()


@pytest.mark.parametrize(
    ("driver", "release", "is_found"),
    [(None, "", True), ((13, 0), "", True), ((12, 8), "", False), (None, "13", True), (None, "12", False)],
)
@pytest.mark.usefixtures("cache")
def test_machine_code_is_of_a_cuda_that_the_driver_runs(lose, monkeypatch, driver, release, is_found):
    path = build(ADD, "vec")
    assert "nvrtc-13" in json.loads((path.parent / "manifest.json").read_text())["parts"]["nvrtc"]
    lose("nvrtc")
    monkeypatch.setattr("jitload.cache.matching.driver_version", lambda: driver)
    monkeypatch.setenv("JITLOAD_NVRTC", release)
    if is_found:
        assert build(ADD, "vec") == path
    else:
        with pytest.raises(ToolchainError):
            build(ADD, "vec")


@pytest.fixture
def bundle(cache, tmp_path, monkeypatch):
    """Return the key directory of a library in a bundle, for sm_80; the local cache does not have it."""
    key_dir = build(ADD, "vec", arch="sm_80").parents[1]
    site = package(tmp_path, None)
    moved = site / BUNDLES_DIR / "pack_with_kernels" / key_dir.name
    moved.parent.mkdir(parents=True, mode=0o755)
    key_dir.rename(moved)
    monkeypatch.syspath_prepend(site)
    errors.warn_once.cache_clear()
    yield moved
    errors.warn_once.cache_clear()


def test_a_bundle_is_used_whichever_tools_made_it(bundle, cache, monkeypatch):
    (leaf,) = bundle.iterdir()
    rewrite(leaf / "vec.so", nvrtc="nvidia_cuda_nvrtc-13", compiler="gcc version 99")
    shutil.rmtree(bundle)
    for mode in ("load-only", "auto"):
        monkeypatch.setenv("JITLOAD_MODE", mode)
        assert build(ADD, "vec", arch="sm_80").is_relative_to(bundle.parent)
    monkeypatch.setenv("JITLOAD_NVRTC", "12")  # the bundle's is of CUDA 13
    monkeypatch.setattr("jitload.sources.device.find_cuda_toolchain", lambda _: None)
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    with pytest.raises(CacheError, match=r"nvrtc: nvidia_cuda_nvrtc-13 and "):
        build(ADD, "vec", arch="sm_80")


def test_an_architecture_that_a_bundle_lacks_is_built_where_it_can_be(bundle, cache, lose):
    assert build(ADD, "vec", arch="sm_86").is_relative_to(cache)
    lose("nvrtc")
    assert build(ADD, "vec", arch="sm_87").is_relative_to(bundle.parent)  # code for sm_80 runs there
    with pytest.raises(ToolchainError, match=r"^NVRTC was not found") as caught:
        build(ADD, "vec", arch="sm_90a")
    _, directories, nearest, difference, _ = str(caught.value).splitlines()
    assert directories == f"The libraries of that name in {cache} do not fit:"
    assert nearest.strip().startswith("The nearest entry, vec-")
    assert difference.strip() == "archs: sm_86 and sm_90a"


@pytest.mark.parametrize(
    ("label", "own", "entry", "is_accepted"),
    [
        ("libc", "glibc 2.36", "glibc 2.28", True),
        ("libc", "glibc 2.9", "glibc 2.28", False),
        ("archs", ["sm_86"], ["sm_80"], True),
        ("archs", ["sm_90a"], ["sm_80", "sm_90"], True),
        ("archs", ["sm_103a"], ["sm_100f"], True),
        ("archs", ["sm_103a"], ["sm_100a"], False),
        ("archs", ["sm_80"], ["sm_86"], False),
        ("archs", ["sm_100a"], ["sm_80", "compute_90"], True),
        ("archs", ["sm_75"], ["sm_80", "compute_80"], False),
        ("archs", ["sm_80", "compute_80"], ["sm_80"], False),
        ("archs", ["sm_90a"], ["sm_80"], False),
        ("archs", ["sm_86", "cpu"], ["sm_80", "cpu"], True),
        ("archs", ["sm_86", "cpu"], ["sm_80"], False),
        ("archs", [], ["sm_80"], False),
        ("gpu_check", "off", None, True),
        ("gpu_check", None, "off", True),
    ],
)
def test_what_a_bundle_may_differ_in(label, own, entry, is_accepted):
    key = tiers.bundle_key(CacheKey.of("vec", ())._replace(unknown_parts=("compiler",)))
    parts, entry_parts = ({label: value} if value is not None else {} for value in (own, entry))
    assert differing_parts(parts, entry_parts, key, read_settings()) == (() if is_accepted else (label,))


_PRODUCTION = """
import logging, sys
import jitload
from jitload.toolchain import cuda
cuda._toolkits = lambda _: iter(())  # of the machine that this test runs on
text = sys.argv[1]
mod = jitload.load_inline("vec", cuda_sources=text, arch="sm_90a")
print(list(mod), mod.__class__.__name__)
print(jitload.build_inline("vec", cuda_sources=text, arch="sm_90a"))
assert "cpu" in repr(jitload.load_inline("vec", cuda_sources=text, arch="cpu"))
by_hand = jitload.load_inline("hand", cpp_sources=sys.argv[2], functions="twice")
print(by_hand.twice(21))
for name in ("nvidia", "torch", "jinja2", "ninja"):
    assert name not in sys.modules, name
try:
    jitload.load_inline("vec", cuda_sources=text + " ", arch="sm_90a")
except jitload.JitLoadError as error:
    print(type(error).__name__, str(error).splitlines()[0])
"""


def test_a_bundle_in_a_package_on_a_machine_with_python_alone(cache, tmp_path, capsys):
    """No compiler, no ninja, none of NVIDIA's wheels, no torch and no Jinja2; nothing of the cache that built it."""
    rows = [
        {"name": "vec", "cuda_sources": ADD, "arch": ARCH},
        {"name": "vec", "cuda_sources": ADD, "arch": "cpu"},
        {"name": "hand", "cpp_sources": BY_HAND, "functions": "twice"},
    ]
    (tmp_path / "requests.json").write_text(json.dumps(rows))
    assert main(["prebuild", str(tmp_path / "requests.json"), "--bundle", str(tmp_path / "bundle")]) == 0
    site = package(tmp_path, tmp_path / "bundle")
    for name in ("tvm_ffi", "typing_extensions"):
        origin = Path(find_spec(name).origin)  # type: ignore[union-attr, arg-type]
        source = origin.parent if origin.name == "__init__.py" else origin
        (site / source.name).symlink_to(source)
    info = Path(distribution("apache-tvm-ffi")._path)  # type: ignore[attr-defined]
    (site / info.name).symlink_to(info)
    env = {"PATH": "/nowhere", "PYTHONPATH": os.pathsep.join((str(ROOT), str(site))), "HOME": str(tmp_path / "home")}
    for mode in ("load-only", "auto"):
        done = subprocess.run(
            [sys.executable, "-S", "-c", _PRODUCTION, ADD, BY_HAND],
            env=env | {"JITLOAD_MODE": mode},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[0].startswith("['add']")
        assert lines[1].startswith(str(site / BUNDLES_DIR / "pack_with_kernels"))
        assert lines[2] == "42"
        assert lines[3].startswith("CacheError" if mode == "load-only" else "ToolchainError NVRTC was not found")
        assert (f"nor in {site / BUNDLES_DIR / 'pack_with_kernels'}" in lines[3]) == (mode == "load-only")
