"""The garbage collector waits until a compiler runs, and is as it was when a build ends."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Iterator

import pytest

import jitload
from jitload import host_build
from jitload.collector import collector_held, release_collector
from jitload.errors import CompileError

ADD = "int add(int a, int b) { return a + b; }"


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Note whether the collector is on, when ninja is started and when it is waited for."""
    notes: list[tuple[str, bool]] = []
    start, wait = host_build._start, subprocess.Popen.communicate

    def noting_start(command, work_dir):
        notes.append(("start", gc.isenabled()))
        return start(command, work_dir)

    def noting_wait(process, *arguments, **options):
        if process.args[0].endswith("ninja"):
            notes.append(("wait", gc.isenabled()))
        return wait(process, *arguments, **options)

    monkeypatch.setattr(host_build, "_start", noting_start)
    monkeypatch.setattr(subprocess.Popen, "communicate", noting_wait)
    return notes


@pytest.fixture
def switched_off() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_it_waits_until_the_compiler_runs(found):
    assert jitload.load_inline("held", cpp_sources=ADD, functions="add").add(1, 2) == 3
    assert found[:2] == [("start", False), ("wait", True)]
    assert gc.isenabled()


def test_it_is_on_again_after_a_failure():
    with pytest.raises(CompileError):
        jitload.load_inline("held", cpp_sources="int add(", functions="add")
    assert gc.isenabled()


def test_it_is_on_again_after_a_hit():
    for name in ("one", "one"):
        jitload.load_inline(name, cpp_sources=ADD, functions="add", keep_module_alive=False)
    assert gc.isenabled()


@pytest.mark.usefixtures("switched_off")
def test_who_switched_it_off_finds_it_off(found):
    jitload.load_inline("held_by_others", cpp_sources=ADD, functions="add")
    assert {is_on for _, is_on in found} == {False}
    assert not gc.isenabled()


def test_a_release_within_counts_once():
    with collector_held():
        with collector_held():
            assert not gc.isenabled()
        release_collector()
        assert gc.isenabled()
        gc.disable()
        release_collector()
        assert not gc.isenabled()
    gc.enable()
