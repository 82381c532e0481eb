"""Judges whose candidates are forked from one process, because importing torch in each takes seconds."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hostile_candidates import make_judge

from jitload.judging import judge as judge_module
from jitload.judging import processes
from jitload.judging.judge import Judge


class SharedTemplate(processes.Template):
    """A process that stays for the next judge."""

    def end(self) -> None:
        if not self.is_alive():
            super().end()


@contextmanager
def one_template() -> Iterator[None]:
    """Let all judges of this process fork their candidates from one process."""
    started: list[SharedTemplate] = []

    def make_template(_: object) -> SharedTemplate:
        if not started or not started[-1].is_alive():
            started.append(SharedTemplate())
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes.Processes, "make_template", make_template)
        yield
        judge_module._judge_in_worker.cache_clear()
    for template in started[-1:]:
        processes.Template.end(template)


@pytest.fixture(scope="session")
def shared_template() -> Iterator[None]:
    with one_template():
        yield


@pytest.fixture(scope="module")
def patient(shared_template: None) -> Iterator[Judge]:
    """Give a judge that waits for builds, and measures."""
    with make_judge(timeout=120, seconds=0.05, memory="2GB") as judge:
        yield judge
