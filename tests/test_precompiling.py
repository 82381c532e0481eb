"""The process that makes a precompiled header: what it makes, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

import jitload
from jitload.cache.store import claim_entry
from jitload.cxx import precompiled
from jitload.cxx.precompiled import find_precompiled, job_command, refusal_path, start_precompiling
from jitload.cxx.precompiling import _publish, make_header
from jitload.cxx.spare import only_one
from jitload.settings import read_settings
from jitload.toolchain.host import find_compiler

PATIENCE = 120.0


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Precompile, in a cache of this test's own, whatever else works on the machine."""
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("JITLOAD_PRECOMPILE", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return read_settings()


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.05)


def simple_header(tmp_path, text="inline int number() { return 1; }\n"):
    """Return a precompiled header of one small header."""
    (tmp_path / "include").mkdir(exist_ok=True)
    (tmp_path / "include" / "small.h").write_text(text)
    key = precompiled.CacheKey.of("precompiled", (("kind", "precompiled"),))
    command = (*find_compiler(read_settings()).command, "-O2", f"-I{tmp_path / 'include'}")
    return precompiled.HeaderSpec(includes=("small.h",), command=command, key=key)


def make(spec, cache_dir):
    with claim_entry(cache_dir, spec.key, read_settings()) as work:
        headers, problem = make_header(spec.command, spec.includes, work.dir)
        assert problem == ""
        _publish(work, headers)


def test_a_changed_header_takes_a_new_one(settings, tmp_path):
    cache_dir = tmp_path / "cache"
    spec = simple_header(tmp_path)
    make(spec, cache_dir)
    found = find_precompiled(spec, cache_dir, settings)
    assert found is not None
    assert found.is_intact()
    assert "small.h" in found.names
    simple_header(tmp_path, "inline int number() { return 2; }\n")
    assert find_precompiled(spec, cache_dir, settings) is None
    make(spec, cache_dir)
    again = find_precompiled(spec, cache_dir, settings)
    assert again is not None
    assert again.path != found.path


def test_a_compiler_that_cannot_is_asked_once(settings, tmp_path):
    spec = simple_header(tmp_path, "#error no\n")
    run_job(spec, tmp_path / "cache").communicate(timeout=PATIENCE)
    assert "#error no" in refusal_path(spec.key, tmp_path / "cache").read_text()
    assert not list((tmp_path / "cache" / ".work").iterdir())
    assert find_precompiled(spec, tmp_path / "cache", settings) is None


def run_job(spec, cache_dir):
    cache_dir.mkdir(exist_ok=True)
    return subprocess.Popen(job_command(spec, cache_dir), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_two_at_once_make_one(settings, tmp_path):
    spec, cache_dir = simple_header(tmp_path), tmp_path / "cache"
    jobs = [run_job(spec, cache_dir) for _ in range(3)]
    assert [(job.communicate(timeout=PATIENCE)[0], job.returncode) for job in jobs] == [(b"", 0)] * 3
    assert len(list(cache_dir.glob("precompiled-*/*/prelude.h.gch"))) == 1
    assert not list((cache_dir / ".work").iterdir())


def test_one_that_is_interrupted_leaves_nothing(settings, tmp_path):
    cache_dir = tmp_path / "cache"
    slow = tmp_path / "slow"
    slow.write_text(f"#!/bin/sh\ntouch {tmp_path}/began prelude.h.gch\nexec sleep 100\n")
    slow.chmod(0o755)
    spec = precompiled.HeaderSpec(includes=(), command=(str(slow),), key=simple_header(tmp_path).key)
    job = run_job(spec, cache_dir)
    wait_for((tmp_path / "began").exists)
    assert len(os.listdir(cache_dir / ".work")) == 1
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=20)
    assert not os.listdir(cache_dir / ".work")
    assert not list(cache_dir.glob("precompiled-*/*"))
    assert not list((cache_dir / ".tools").glob("*"))


def test_nothing_is_started_that_cannot_be_afforded(settings, tmp_path, monkeypatch):
    spec, cache_dir = simple_header(tmp_path), tmp_path / "cache"
    cache_dir.mkdir()
    started = []
    monkeypatch.setattr(precompiled.subprocess, "run", lambda command, **_: started.append(command))
    monkeypatch.setattr(precompiled, "_retry_at", {})
    monkeypatch.setattr(precompiled, "free_memory", lambda: 1 << 20)
    start_precompiling(spec, cache_dir, settings)
    monkeypatch.setattr(precompiled, "_retry_at", {})
    monkeypatch.setattr(precompiled, "free_memory", lambda: 1 << 40)
    monkeypatch.setattr(precompiled.os, "access", lambda *_: False)
    start_precompiling(spec, cache_dir, settings)
    assert started == []
    monkeypatch.setattr(precompiled, "_retry_at", {})
    monkeypatch.setattr(precompiled.os, "access", lambda *_: True)
    start_precompiling(spec, cache_dir, settings)
    start_precompiling(spec, cache_dir, settings)
    assert len(started) == 1


def test_whatever_goes_wrong_the_build_does_not(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(precompiled, "_retry_at", {})
    monkeypatch.setattr(precompiled.sys, "executable", "/no/such/python")
    path = jitload.build_inline("m", cpp_sources="int f() { return 50; }", functions="f")
    assert jitload.load_module(path).f() == 50


def test_one_process_at_a_time_makes_them(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with only_one() as first, only_one() as second:
        assert (first, second) == (True, False)
        started = time.monotonic()
        with only_one(0.2) as third:
            assert not third
        assert time.monotonic() - started >= 0.2
    with only_one() as again:
        assert again
