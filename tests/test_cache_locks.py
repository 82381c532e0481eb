"""Builders that wait, die, are interrupted or fork, and what they leave behind."""

import errno
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from builds import ADD, build, python_command, python_env, run_python, start_python, work_dirs
from cheap import get, make_key

from jitload.cache.entry import find_entry
from jitload.cache.locks import hold_lock, host_tag
from jitload.cache.store import claim_entry, sweep_work_dirs
from jitload.errors import CompileError
from jitload.settings import read_settings

HOLD = """
import sys, time, pathlib
from jitload.cache.locks import hold_lock
with hold_lock(pathlib.Path(sys.argv[1]), "it"):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], env=python_env(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_waiting_process_names_the_builder_and_goes_on_when_the_builder_dies(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("jitload.cache.locks._FIRST_REPORT_S", 0.2)
    process = holder(tmp_path / "lock")
    waited = []

    def wait() -> None:
        with hold_lock(tmp_path / "lock", "'vec'", verb="fetches"):
            waited.append(time.monotonic())

    with caplog.at_level(logging.WARNING, "jitload"):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.6)
        assert not waited
        killed = time.monotonic()
        process.kill()
        thread.join(60)
    process.communicate()
    assert waited[0] - killed < 10  # the holder would have slept for a minute
    assert f"waiting for 'vec', which process {process.pid} on {os.uname().nodename} fetches: " in caplog.text
    assert "s for 'vec'" in caplog.records[-1].message
    assert len(caplog.records) == 2


def test_ctrl_c_ends_a_wait_and_leaves_nothing(cache):
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import cheap, pathlib
print("waits", flush=True)
cheap.get(pathlib.Path({str(cache)!r}), cheap.make_key())
"""
    process = holder(cache / ".locks" / make_key().digest)
    waiter = start_python(code)
    assert waiter.stdout is not None
    waiter.stdout.readline()
    time.sleep(0.5)
    waiter.send_signal(signal.SIGINT)
    started = time.monotonic()
    waiter.communicate()
    assert time.monotonic() - started < 30
    assert waiter.returncode != 0
    process.kill()
    process.communicate()
    assert work_dirs(cache) == []
    assert get(cache, make_key()).product.is_file()


def children_of(text: str) -> list[str]:
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command:
            commands.append(command)
    return commands


def test_ctrl_c_ends_a_build_with_its_children(cache, tmp_path):
    mark = tmp_path / "reached"
    script = tmp_path / "slow-c++"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *wrapper.cc*|*loader.cc*) touch "{mark}"; sleep 77.25;; esac\n'
        f'exec {shutil.which("c++")} "$@"\n'
    )
    script.chmod(0o755)
    process = start_python("import builds; builds.build(builds.ADD)", {"JITLOAD_CXX": str(script)})
    deadline = time.monotonic() + 30
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode != 0
    assert children_of("sleep 77.25") == []
    assert work_dirs(cache) == []
    assert build(ADD).is_file()


def test_a_file_system_without_locks_is_warned_of_once(cache, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    entries = [get(cache, make_key(f"m{number}")) for number in range(3)]
    assert all(entry.product.is_file() for entry in entries)
    assert caplog.text.count("cannot be locked ([Errno 37] No locks available)") == 1
    assert work_dirs(cache) == []


def test_the_loser_of_a_race_publishes_another_entry(cache, monkeypatch):
    """As on NFS, where neither sees the other in time."""
    winner = get(cache, make_key())
    list_dir = os.listdir
    with monkeypatch.context() as patch:
        patch.setattr("jitload.cache.store.find_entry", lambda *_, **__: None)
        patch.setattr(os, "listdir", lambda path: [] if path == winner.dir.parent else list_dir(path))
        with claim_entry(cache, make_key(), read_settings()) as work:
            (work.dir / "product").write_text("own")
            loser = work.publish("product")
    assert loser.dir.parent == winner.dir.parent
    assert loser.dir != winner.dir
    assert (loser.product.read_text(), winner.product.is_file()) == ("own", True)
    assert work_dirs(cache) == []
    newest = find_entry(cache, make_key(), read_settings())
    assert newest is not None
    assert newest.dir == loser.dir


def test_a_directory_that_is_swept_before_it_is_marked_is_not_built_in(cache, monkeypatch):
    """Another process's look for what the dead left meets it between its making and its mark."""
    real, removed = fcntl.flock, []

    def flock(handle, how):
        locked = os.readlink(f"/proc/self/fd/{handle}")
        if f"{cache}/.work/" in locked and not removed:
            removed.append(locked)
            os.rmdir(locked)
        return real(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with claim_entry(cache, make_key(), read_settings()) as work:
        assert removed
        assert work.dir.is_dir()
        assert str(work.dir) not in removed
        (work.dir / "product").write_text("whole")
        work.publish("product")
    assert find_entry(cache, make_key(), read_settings())


def test_a_living_builders_directory_stays(cache):
    with claim_entry(cache, make_key(), read_settings()) as work:
        assert run_python(f"import jitload.cache.store as s; s.sweep_work_dirs(s.Path({str(cache)!r}))").returncode == 0
        sweep_work_dirs(cache)
        assert work.dir.is_dir()


def test_a_failed_build_is_kept_for_a_week(cache):
    def fail(work):
        (work.dir / "source").write_text("")
        raise CompileError(stage="host", name="m", log="no", work_dir=work.dir)

    with pytest.raises(CompileError) as caught:
        get(cache, make_key(), fail)
    kept = caught.value.work_dir
    get(cache, make_key("other"))
    assert kept.is_dir()
    then = time.time() - 8 * 86400
    os.utime(kept / ".failed", (then, then))
    get(cache, make_key("another"))
    assert not kept.exists()


def test_another_machines_directory_is_left_for_a_day(cache):
    get(cache, make_key())
    young, old = (cache / ".work" / f"m-{tag}-1-{'0' * 12}" for tag in ("aaaaaaaa", "bbbbbbbb"))
    for directory in (young, old):
        directory.mkdir()
    then = time.time() - 2 * 86400
    os.utime(old, (then, then))
    get(cache, make_key("other"))
    assert [young.exists(), old.exists()] == [True, False]
    assert host_tag() not in ("aaaaaaaa", "bbbbbbbb")


def test_a_child_forked_during_a_build_holds_nothing_back(cache):
    """Its parent dies; the child lives on, and with it would the parent's locks."""
    code = f"""
import sys, os, time; sys.path.insert(0, {str(Path(__file__).parent)!r})
import cheap, pathlib
def fork(work):
    if os.fork() == 0:
        os.setsid()
        time.sleep(8)
        os._exit(0)
    os._exit(9)
cheap.get(pathlib.Path({str(cache)!r}), cheap.make_key(), fork)
"""
    with subprocess.Popen(python_command(code), env=python_env()) as process:
        assert process.wait(20) == 9
    started = time.monotonic()
    get(cache, make_key())
    assert time.monotonic() - started < 5
    assert work_dirs(cache) == []


def test_a_child_of_fork_builds_for_itself_and_removes_nothing_of_its_parents(cache):
    code = f"""
import sys, os; sys.path.insert(0, {str(Path(__file__).parent)!r})
import cheap, pathlib
cache = pathlib.Path({str(cache)!r})
def fork(work):
    child = os.fork()
    if child == 0:
        import threading, atexit
        cheap.get(cache, cheap.make_key("child"))
        atexit._run_exitfuncs()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert work.dir.is_dir()
cheap.get(cache, cheap.make_key(), fork)
cheap.get(cache, cheap.make_key("child"), lambda work: sys.exit("built twice"))
"""
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert find_entry(cache, make_key(), read_settings())
