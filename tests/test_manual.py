"""The manual: Sphinx builds it without a warning, and every block of its pages runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from builds import ROOT, python_env

DOCS = ROOT / "docs"
PAGES = sorted({path.stem for path in DOCS.glob("*.md")} - {"README", "index"})


def test_the_manual_builds_without_warnings(tmp_path: Path) -> None:
    for package in ("furo", "myst_parser", "sphinx", "sphinx_click"):
        pytest.importorskip(package, reason="the extra docs is not installed")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, env=python_env(), capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    reference = (tmp_path / "reference.html").read_text()
    import jitload

    for name in [*jitload.__all__, "prebuild", "torch_op"]:
        assert re.search(rf'id="jitload\.(errors\.)?{name}"', reference), name
    options = (tmp_path / "reference_cli.html").read_text()
    assert "--resources" in options


def test_the_contents_and_the_readme_list_each_page() -> None:
    toctrees = re.findall(r"^[a-z_]+$", (DOCS / "index.md").read_text(), flags=re.MULTILINE)
    assert sorted(toctrees) == PAGES
    linked = re.findall(r"\((\w+)\.md\)", (DOCS / "README.md").read_text())
    assert sorted(set(linked)) == PAGES
