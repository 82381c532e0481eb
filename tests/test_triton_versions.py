"""Releases of Triton: which are supported, and what is said of the others."""

from __future__ import annotations

import sys

import pytest

import jitload
from jitload.errors import ToolchainError
from jitload.triton.versions import Triton, read_version


def test_releases():
    assert read_version("3.6.0+git1234").number == (3, 6)
    assert [Triton(f"3.{minor}.0").hidden_pointers for minor in range(2, 11)] == [0, 1, 1, *[2] * 6]
    with pytest.raises(ToolchainError, match=r"Triton 3.1.0 is too old: jitload needs 3.2 or newer"):
        read_version("3.1.0")
    with pytest.raises(ToolchainError, match="reports the version 'dev', which is not a version number"):
        read_version("dev")


def test_no_triton(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ToolchainError, match=r"need Triton, and it cannot be imported.*pip install triton"):
        jitload.extract_triton(None)
