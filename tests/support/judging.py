"""Judges whose candidates are forked from one process, because importing torch in each takes seconds."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hostile_candidates import make_judge

from jitload.building.child_process import ChildPool
from jitload.judging import judge as judge_module
from jitload.judging import processes
from jitload.judging.judge import Judge


class SharedPool(ChildPool):
    """A pool whose process stays for the next judge."""

    def close(self) -> None:
        pass


@contextmanager
def one_template() -> Iterator[None]:
    """Let all judges of this process fork their candidates from one process."""
    pool = SharedPool(processes.Template)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "ChildPool", lambda _: pool)
        yield
        judge_module._judge_in_worker.cache_clear()
    ChildPool.close(pool)


@pytest.fixture(scope="session")
def shared_template() -> Iterator[None]:
    with one_template():
        yield


@pytest.fixture(scope="module")
def patient(shared_template: None) -> Iterator[Judge]:
    """Give a judge that waits for builds, and measures."""
    with make_judge(timeout=120, seconds=0.05, memory="2GB") as judge:
        yield judge
