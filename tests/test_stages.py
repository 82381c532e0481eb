"""What `verbose=True` shows: messages of level INFO, while any thread builds with it."""

from __future__ import annotations

import logging
import re

import pytest

from jitload.building.stages import shown_log, stage


def unconfigured_logger(monkeypatch, level=logging.NOTSET):
    """Return the package's logger as in a program without handlers; pytest adds its own when a test begins."""
    logger = logging.getLogger("jitload")
    for name, value in {"propagate": False, "handlers": [], "level": level, "_cache": {}}.items():
        monkeypatch.setattr(logger, name, value)
    return logger


@pytest.mark.parametrize("level", [logging.WARNING, logging.ERROR, logging.INFO])
def test_the_last_of_several_builds_restores_the_logger(monkeypatch, capsys, level):
    logger = unconfigured_logger(monkeypatch, level)
    shown_log.__enter__()
    shown_log.__enter__()
    shown_log.__exit__(None, None, None)
    with stage("the second build"):
        pass
    shown_log.__exit__(None, None, None)
    assert logger.level == level
    assert not logger.handlers
    with stage("a build that is not shown"):
        pass
    assert re.fullmatch(r"jitload: the second build: \d+ ms\n", capsys.readouterr().err)


def test_nothing_is_shown_by_default(monkeypatch, capsys):
    unconfigured_logger(monkeypatch)
    with stage("a build"):
        pass
    assert not capsys.readouterr().err
