"""Standing guards: the public names, the sizes of files and functions, and what `import jitload` imports.

Which package may import which other is in pyproject.toml, where import-linter and ruff read it.
"""

import ast
import importlib
import inspect
import re

import pytest
from builds import ROOT, run_python

import jitload

PACKAGE = ROOT / "jitload"
SOURCES = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")])
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.name not in ("__main__.py", "hatch_build.py")  # the latter needs hatchling
)
HEAVY = (
    "cuda", "cupy", "elftools", "filelock", "jax", "jinja2", "ninja", "numpy", "nvidia", "torch",
    "triton", "tvm_ffi",
)  # fmt: skip
LONGEST_FILE, LONGEST_FUNCTION = 500, 60


def test_dir_shows_the_public_names():
    assert sorted(jitload.__all__) == jitload.__all__
    assert len(jitload.__all__) <= 13
    on_demand = (
        "Judge", "Tma", "Tuning", "__version__", "check", "compare", "errors", "jax_call", "nvrtc", "prebuild",
        "torch_op", "tune",
    )  # fmt: skip
    assert dir(jitload) == sorted([*jitload.__all__, *on_demand])
    for name in jitload.__all__:
        assert getattr(jitload, name) is not None
    with pytest.raises(AttributeError, match="module 'jitload' has no attribute 'nothing'"):
        jitload.nothing  # noqa: B018


def test_no_module_has_the_name_of_a_public_function():
    modules = {name.removeprefix("jitload.") for name in MODULES}
    assert not modules & {*jitload.__all__, "prebuild"}  # importing it would replace the function


def test_every_public_function_is_documented():
    for name in jitload.__all__:
        value = getattr(jitload, name)
        doc = inspect.getdoc(value) or ""
        assert len(doc) > 30, name
        if inspect.isfunction(value):
            assert "Example:" in doc, name
            assert set(inspect.get_annotations(value)) >= set(inspect.signature(value).parameters), name


def test_the_package_is_light_to_import():
    code = f"import sys, jitload; print(sorted({{m.partition('.')[0] for m in sys.modules}} & set({HEAVY!r})))"
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_import_creates_no_dataclass_but_the_public_one():
    """Creating a frozen dataclass takes up to a millisecond; a named tuple takes 0.1 ms."""
    code = """
import dataclasses, sys, jitload
modules = [module for name, module in sorted(sys.modules.items()) if name.startswith("jitload.")]
classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
print([cls.__name__ for cls in classes if dataclasses.is_dataclass(cls)], "jitload.model" in sys.modules)
"""
    assert run_python(code).stdout == "['Launch'] False\n"


def test_every_module_can_be_imported_first():
    for module in MODULES:
        importlib.import_module(module)


def test_files_and_functions_are_short():
    for path in SOURCES:
        text = path.read_text()
        assert text.count("\n") <= LONGEST_FILE, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
                assert (node.end_lineno or 0) - first.lineno < LONGEST_FUNCTION, f"{path}:{node.lineno} {node.name}"


def test_the_guide_for_contributors_names_packages_and_files_that_exist():
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = guide.partition("| package | purpose |")[2].partition("\n\n")[0]
    packages = {name for row in table.splitlines() for name in re.findall(r"`(\w+)/?`", row.split("|")[1])}
    assert packages == {name.split(".")[1] for name in MODULES if "." in name}, "the table in CONTRIBUTING.md is wrong"
    kinds = {path.stem for path in (PACKAGE / "sources").glob("*.py")} - {"__init__", "common"}
    listed = guide.partition("Each kind of source is a module")[2].partition("`make_request`")[0]
    assert kinds == set(re.findall(r"`(\w+)`", listed)), "the list of kinds of source in CONTRIBUTING.md is wrong"
    files = [f"/{path}" for folder in ("jitload", "tests", "docs", "examples") for path in (ROOT / folder).rglob("*.*")]
    names = set(re.findall(r"`([\w./]+\.(?:py|h|cc|md|json))`", guide)) - {"README.md", "CHANGELOG.md"}
    missing = [name for name in sorted(names) if not any(path.endswith(f"/{name}") for path in files)]
    assert missing == [], f"CONTRIBUTING.md names {missing}, which do not exist"
    code = " ".join((ROOT / f[1:]).read_text("utf-8", "replace") for f in files if f.endswith((".py", ".h", ".cc")))
    identifiers = {*re.findall(r"`(\w*_\w+)`", guide)} - {*re.findall(r"\w+", code)}
    assert not identifiers, f"CONTRIBUTING.md names {identifiers}, which do not exist"
