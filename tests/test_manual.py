"""The manual: Sphinx builds it without a warning, and every block of its pages runs."""

import re
from importlib.util import find_spec
from typing import Any

import pytest
from builds import ROOT
from support.manual import read_blocks

DOCS = ROOT / "docs"
PAGES = sorted({path.stem for path in DOCS.glob("*.md")} - {"README", "index"})
WITH_BLOCKS = [page for page in (*PAGES, "README") if any(read_blocks(DOCS / f"{page}.md"))]
HAS_SPHINX = all(map(find_spec, ("furo", "myst_parser", "sphinx", "sphinx_click", "sphinx_copybutton")))
KNOWN_MARK = re.compile(r"|needs (a GPU|nvcc|nvcc and a GPU|JAX)|file: [\w.]+|not run: .+")
PRINTED = {
    "inspecting": ['/vec.cu", line 4', "8 blocks and 64 of 64 warps"],
    "README": ["tensor([1., 2., 3., 4., 5., 6., 7., 8.]"],
    "measuring": ["GB/s"],
    "quickstart": ["argument 'x' must be a float32", "JL-", "wrong.cu:2"],
    "torch": ["tensor([1.5000, 1.5000])"],
    "untrusted": ["a read of 4 bytes at byte 400 of 'x', which has 400 bytes"],
}


def test_the_manual_builds_without_warnings(run_page):
    if not HAS_SPHINX:
        pytest.skip("the extra docs is not installed")
    built = run_page(DOCS)
    assert (built.status, built.output) == ("0", "")
    reference = "".join(path.read_text() for path in (built.directory / "html").glob("reference_*.html"))
    import jitload

    for name in [*jitload.__all__, "compare", "jax_call", "prebuild", "torch_op"]:
        assert re.search(rf'id="jitload\.(errors\.)?{name}"', reference), name
    options = (built.directory / "html" / "reference_cli.html").read_text()
    assert "--ldflags" in options


def test_the_contents_and_the_readme_list_each_page():
    toctrees = re.findall(r"^[a-z_]+$", (DOCS / "index.md").read_text(), flags=re.MULTILINE)
    assert sorted(toctrees) == PAGES
    linked = re.findall(r"\((\w+)\.md\)", (DOCS / "README.md").read_text())
    assert sorted(set(linked)) == PAGES


def test_each_mark_says_something_that_is_known():
    for page in PAGES:
        for block in read_blocks(DOCS / f"{page}.md"):
            assert KNOWN_MARK.fullmatch(block.mark), f"{page}.md:{block.line}"


@pytest.mark.parametrize("page", WITH_BLOCKS)
def test_the_blocks_of_the_page_run(page, run_page):
    if page == "triton":
        pytest.importorskip("triton")
    run = run_page(DOCS / f"{page}.md")
    assert run.status == "0", run.output
    for line in PRINTED.get(page, ()):
        assert line in run.output


def test_the_first_block_of_the_readme_runs():
    first = next(read_blocks(ROOT / "README.md"))
    code, refused = first.text.replace('device="cuda"', 'device="cpu"').rstrip().rsplit("\n", 1)
    namespace: dict[str, Any] = {}
    exec(code.replace('"vec",', '"vec", arch="cpu",'), namespace)
    assert namespace["y"].tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(TypeError, match=r"argument 'x' must be a float32 .*, got float16"):
        exec(refused, namespace)
