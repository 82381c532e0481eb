"""A cache for one test, as a pytest fixture; a test module names this one in `pytest_plugins`."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache for one test."""
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"
