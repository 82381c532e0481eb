"""`JITLOAD_MODE`: what a process may build, and what it says about what it may not."""

import os

import pytest
from builds import ADD, build, kernel, load, run_python

from jitload.errors import CacheError, JitLoadError
from jitload.settings import parse_size


def refusal(text: str, name: str = "vec", **options: object) -> list[str]:
    with pytest.raises(CacheError) as caught:
        build(text, name, **options)
    return caught.value.message().splitlines()


def test_load_only_says_that_an_entry_is_damaged_and_leaves_it(cache, tmp_path, monkeypatch, caplog):
    path = build(ADD, "vec")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    before = sorted(cache.rglob("*"))
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    _, damage, _ = refusal(ADD)
    assert damage.strip() == "There is an entry; the log says what is wrong."
    assert f"{path.parent} cannot be used (vec.so does not have the SHA-256" in caplog.text
    assert sorted(cache.rglob("*")) == before
    assert "it is skipped" in caplog.text
    assert "built again" not in caplog.text
    monkeypatch.setenv("JITLOAD_CACHE_PATH", str(cache))
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "other"))
    assert refusal(ADD)[1] == damage


def test_load_only_loads_and_does_not_build(cache, monkeypatch):
    path = build(ADD, "vec")
    before = sorted(cache.rglob("*"))
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    assert build(ADD, "vec") == path
    assert list(load(ADD, "vec")) == ["add"]
    first, *_, last = refusal(kernel("k"))
    assert first == f"module 'vec' is not in the cache {cache}, and JITLOAD_MODE=load-only does not build it"
    assert last.strip().startswith("Build it in advance with JITLOAD_MODE=auto")
    assert sorted(cache.rglob("*")) == before


CHANGES = [
    ({"arch": "sm_90"}, "archs: sm_90a and sm_90"),
    ({"extra_cuda_cflags": ["-DN=5"]}, "options: -DN=4 and -DN=5"),
    ({"functions": "add"}, "functions: all and add=Launch("),
]


@pytest.mark.parametrize(("change", "line"), CHANGES)
def test_load_only_says_which_parts_of_the_key_differ(monkeypatch, change, line):
    build(ADD, "why", extra_cuda_cflags=["-DN=4"])
    build(kernel("another"), "why", extra_cuda_cflags=["-DN=4", "-DM", "-DL"])
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    lines = refusal(ADD, "why", **{"extra_cuda_cflags": ["-DN=4"], **change})
    assert "has another key. These are its parts and the request's:" in lines[1]
    assert any(text.strip().startswith(line) for text in lines), lines
    assert len(lines) == 4


def test_load_only_says_that_there_is_nothing_of_that_name(tmp_path, monkeypatch):
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "none"))
    assert "    There is no entry of that name." in refusal(ADD)
    assert [path.name for path in tmp_path.glob("none/*")] in ([], [".tools"])  # the digest of a checkout


def test_a_process_that_may_only_load_leaves_no_note(cache):
    manifest = build(ADD, "vec").parent / "manifest.json"
    os.utime(manifest, (0, 0))
    code = "import builds; builds.build(builds.ADD, 'vec')"
    for environment, is_noted in (({"JITLOAD_MODE": "load-only"}, False), ({}, True)):
        assert run_python(code, environment).returncode == 0
        assert (manifest.stat().st_mtime > 0) is is_noted


def test_rebuild_builds_once_in_a_process_and_beside_what_was_there(cache, monkeypatch):
    old = build(ADD)
    monkeypatch.setenv("JITLOAD_MODE", "rebuild")
    new = build(ADD)
    assert new != old
    assert old.is_file()
    assert build(ADD) == new
    assert list(load(ADD)) == ["add"]
    monkeypatch.setenv("JITLOAD_MODE", "auto")
    assert build(ADD) == new  # the last one counts


SECONDS = " must be a number of seconds above 0, such as 2.5"
INVALID = {
    "JITLOAD_MODE": (("never",), " must be one of auto, load-only, rebuild"),
    "JITLOAD_CACHE_LIMIT": (("much", "-1"), ": a size is a number with K, M, G or T, such as 2GB"),
    "JITLOAD_CACHE_REMOTE_TIMEOUT": (("0", "-1", "soon", "1e3", "nan", "٣"), SECONDS),
    "JITLOAD_CPU_TIMEOUT": (("0", "soon"), SECONDS),
    "JITLOAD_CPU_THREADS": (("many", "0", "-3", "2.5", "1e3"), " must be a number of threads, such as 8"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_values_of_environment_variables_are_refused(monkeypatch, name):
    values, rule = INVALID[name]
    for value in values:
        monkeypatch.setenv(name, value)
        with pytest.raises(JitLoadError) as caught:
            build(ADD)
        assert str(caught.value) == f"{name}={value!r}{rule}"
        assert type(caught.value) is JitLoadError


def test_a_size_may_have_a_unit():
    sizes = {"0": 0, "2GB": 2 * 10**9, "1.5G": 15 * 10**8, "500 MB": 5 * 10**8}
    assert {text: parse_size(text) for text in sizes} == sizes


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("mode", ["755", "-R go+rX"])
def test_load_only_says_that_an_entry_may_not_be_read(tmp_path, mode):
    """As in an image that root filled, under the user that runs it; and `chmod -R` opens it."""
    code = """
import os, pathlib, sys, cheap
from jitload.cache.entry import find_entry
from jitload.cache.explain import explain_miss
from jitload.settings import read_settings
cache = pathlib.Path(sys.argv[1])
cheap.get(cache, cheap.make_key())
os.system(f"chmod 755 '{cache}'; chmod {sys.argv[2]} '{cache}'")
os.chdir("/")
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(find_entry(cache, cheap.make_key(), read_settings()) is not None)
print(explain_miss(cache, cheap.make_key(), read_settings()))
"""
    for directory in reversed((tmp_path, *tmp_path.parents)):
        if directory.stat().st_uid == os.getuid() and str(directory).startswith("/tmp/"):
            directory.chmod(0o755)
    done = run_python(code, arguments=[tmp_path / "cache", mode])
    if mode == "755":
        assert done.stdout.startswith("False\n"), done.stderr
        assert "There is an entry; the log says what is wrong." in done.stdout
        assert "Permission denied" in done.stderr
    else:
        assert done.stdout.startswith("True\n"), done.stderr
