"""Standing guards: what is visible, who imports whom, how long files are, and what `import jitload` costs."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest
from builds import ROOT, run_python

import jitload

PACKAGE = ROOT / "jitload"
TOOLS = sorted(path.relative_to(PACKAGE) for path in (PACKAGE / "utils").glob("*.py"))
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py"))
TESTS = sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py"))

# Who may import whom within the package, from the foot to the head; a module may import only what stands above it.
IMPORTS = {
    "errors": "",
    "model": "",
    "settings": "errors",
    "paths": "errors",
    "trust": "errors settings",
    "gpu": "",
    "collector": "",
    "headers": "",
    "lexer": "",
    "gpu_only": "errors lexer",
    "expression_code": "",
    "exchange": "",
    "expression_text": "errors",
    "expression": "errors expression_code expression_text",
    "launch": "errors expression expression_text",
    "arch": "errors gpu settings",
    "elf": "",
    "parameters": "launch lexer",
    "source": "lexer model parameters",
    "sources": "errors model paths source",
    "flags": "errors",
    "triton_source": "model",
    "checks": "arch errors",
    "named": "errors launch sources",
    "request": "arch checks errors flags gpu_only launch named paths settings sources triton_source",
    "toolchain": "errors gpu settings",
    "recipe": "",
    "inputs": "recipe",
    "notes": "settings",
    "mounts": "",
    "locks": "mounts settings",
    "entry": "errors inputs notes recipe settings trust",
    "inventory": "entry errors notes recipe",
    "why": "entry errors inputs inventory recipe settings",
    "prune": "entry errors inventory locks mounts notes settings",
    "host_build": "errors",
    "cache": "entry errors host_build inputs locks notes prune recipe settings why",
    "identity": "errors settings toolchain",
    "archive": "entry errors inventory locks notes settings",
    "remote": "archive entry errors locks recipe settings",
    "bundles": "settings",
    "tiers": "bundles entry errors recipe remote settings trust",
    "host_headers": "",
    "precompiled": "entry identity recipe settings sources toolchain",
    "precompiling": "cache host_headers precompiled recipe settings",  # in a process of its own
    "runtime": "cache errors host_build identity settings tiers toolchain",
    "nvrtc": "arch errors flags settings sources toolchain",  # all but errors: in upstream's helper alone
    "mangled_text": "",
    "mangled_codes": "mangled_text",
    "mangled_values": "mangled_codes mangled_text",
    "mangled": "mangled_codes mangled_text mangled_values",
    "demangle": "errors mangled",
    "cubin": "demangle errors model",
    "cxxtype": "model",
    "exports": "model",
    "probe": "errors",
    "written": "cxxtype errors lexer parameters",
    "signature": "cxxtype demangle errors exports model probe written",
    "kernels": "checks cubin errors headers model nvrtc probe signature source toolchain",
    "choice": "errors exports kernels launch model",
    "codegen": "choice errors expression launch model",
    "triton_tables": "codegen errors model",
    "triton_code": "arch choice codegen errors expression expression_code launch model triton_tables",
    "driver_calls": "",
    "embedding": "errors headers lexer sources",
    "nvcc": "arch errors host_build identity nvrtc settings sources toolchain",
    "images": "cubin errors kernels launch model request signature sources",
    "linkers": "arch errors gpu settings",
    "ptx": "arch cubin errors flags linkers model request settings signature sources",
    "cpu_object": "model",
    "cpu_text": "cpu_object gpu_only kernels probe",
    "cpu": "checks cpu_object cpu_text demangle errors gpu_only host_build kernels model probe runtime signature "
    "source toolchain",
    "library": "arch cache choice codegen cpu errors host_build images kernels ptx request runtime source toolchain",
    "host_link": "driver_calls errors nvcc settings toolchain",
    "host_text": "precompiled sources",
    "host": "cache cubin elf embedding errors headers host_build host_headers host_link host_text library "
    "nvcc precompiled request runtime sources toolchain",
    "triton_versions": "errors",
    "triton_types": "errors model",
    "triton_facts": "model triton_types",
    "triton_globals": "",
    "triton_kernel": "errors",
    "triton_plan": "errors triton_kernel triton_types",
    "triton_key": "errors model triton_globals triton_kernel triton_plan triton_versions",
    "triton_examples": "errors triton_kernel triton_plan triton_versions",
    "triton_wanted": "arch errors triton_examples triton_kernel triton_plan triton_versions",
    "triton_compile": "errors triton_globals triton_kernel triton_key triton_plan triton_versions",
    "triton_record": "cubin errors model triton_facts triton_versions",
    "triton_grid": "errors launch triton_key",
    "triton_library": "arch cache host_build launch library model request runtime toolchain triton_code triton_compile "
    "triton_grid triton_record triton_source",
    "cpu_library": "cache checks cpu errors headers host_build host_headers identity library request runtime toolchain",
    "pipeline": "arch cache collector cpu_library errors host identity library nvcc recipe request settings tiers "
    "toolchain triton_library",
    "function": "model",
    "direct": "exchange function",
    "loader": "demangle direct elf errors exchange function",
    "placing": "cache errors request",
    "objects": "arch cache entry errors host_build placing request runtime toolchain",
    "serving": "cache collector errors loader objects paths pipeline placing request",
    "triton_variants": "errors triton_kernel triton_plan triton_wanted",
    "triton_request": "arch errors model request settings triton_key triton_kernel triton_plan triton_record "
    "triton_source triton_variants triton_versions triton_wanted",
    "extract": "arch errors model settings triton_compile triton_kernel triton_record triton_versions triton_wanted",
    "triton_api": "launch loader serving triton_request triton_variants",
    "api": "arch checks errors kernels library loader model named paths ptx request serving settings sources toolchain",
    "prebuild_requests": "errors serving settings triton_request",
    "prebuild_worker": "api entry errors library precompiled prebuild_requests settings triton_key",
    "prebuilding": "errors prebuild_requests prebuild_worker",
    "__init__": "api errors extract launch loader prebuilding triton_api",
    # What stands beside the road, and nothing above imports.
    "prebuild_files": "errors launch prebuild_requests",
    "shipping": "archive errors inventory notes",
    "cli": "archive entry errors inventory prebuild_files prebuilding prune settings shipping why",
    "__main__": "cli",
}
# What stands beside the road: nothing of the package imports these, and they import what they need.
TOOL_IMPORTS = {
    "utils/__init__.py": "",
    "utils/object_file.py": "errors",
    "utils/output.py": "errors",
    "utils/embed_cubin.py": "cubin errors sources utils",
    "utils/cubin_source.py": "embedding errors utils",
    "utils/generate_cubin.py": "errors kernels library request sources toolchain utils",
    "utils/config.py": "toolchain utils",
}

HEAVY = (
    "cuda", "cupy", "elftools", "filelock", "jax", "jinja2", "ninja", "numpy", "nvidia", "torch", "triton", "tvm_ffi",
)  # fmt: skip


def imports_of(module: str) -> set[str]:
    """Return the modules of the package that one imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / module).with_suffix(".py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "jitload":
            found |= {alias.name for alias in node.names if not alias.name.startswith("__")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jitload."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("jitload.")}
    return found


# ---- what is visible -------------------------------------------------------------------------------------------


def test_all_is_what_is_visible():
    assert sorted(jitload.__all__) == jitload.__all__
    assert len(jitload.__all__) <= 12
    assert dir(jitload) == sorted([*jitload.__all__, "__version__"])
    for name in jitload.__all__:
        assert getattr(jitload, name) is not None
    with pytest.raises(AttributeError, match="module 'jitload' has no attribute 'nothing'"):
        jitload.nothing  # noqa: B018


def test_no_module_has_the_name_of_a_public_function():
    assert not set(MODULES) & set(jitload.__all__)  # imported, it would stand in the function's place


def test_every_public_name_says_what_it_is():
    for name in jitload.__all__:
        thing = getattr(jitload, name)
        assert len(inspect.getdoc(thing) or "") > 30, name
        if inspect.isfunction(thing):
            doc = inspect.getdoc(thing) or ""
            assert "Example:" in doc, name
            assert set(inspect.get_annotations(thing)) >= set(inspect.signature(thing).parameters), name


@pytest.mark.parametrize("module", MODULES)
def test_every_module_and_class_has_a_docstring(module):
    tree = ast.parse((PACKAGE / f"{module}.py").read_text())
    assert ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{module}.{node.name}"


def test_types_and_templates_ship():
    assert (PACKAGE / "py.typed").is_file()
    assert (ROOT / "templates" / "wrapper.cc.jinja").is_file()


# ---- who imports whom ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_imports_obey_the_table(module):
    assert imports_of(module) <= set(IMPORTS[module].split())


@pytest.mark.parametrize("path", TOOLS, ids=str)
def test_tools_stand_beside_the_road(path):
    assert imports_of(str(path)) == set(TOOL_IMPORTS[str(path)].split())
    assert ast.get_docstring(ast.parse((PACKAGE / path).read_text()))
    assert sorted(map(str, TOOLS)) == sorted(TOOL_IMPORTS)


def test_the_table_points_one_way():
    order = list(IMPORTS)
    assert sorted(order) == MODULES
    for module, names in IMPORTS.items():
        assert all(order.index(name) < order.index(module) for name in names.split()), module


def test_the_package_is_light_to_import():
    code = f"import sys, jitload; print(sorted({{m.partition('.')[0] for m in sys.modules}} & set({HEAVY!r})))"
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_nothing_heavy_is_imported_at_the_top_of_a_module():
    allowed = {"function": {"tvm_ffi"}, "loader": {"tvm_ffi"}, "direct": {"tvm_ffi"}, "exchange": {"tvm_ffi"}}
    for module in MODULES:
        found = set()
        for node in ast.parse((PACKAGE / f"{module}.py").read_text()).body:
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").split(".")[0])
        assert found & set(HEAVY) <= allowed.get(module, set()), module


def test_every_module_can_be_imported_first():
    for module in MODULES:
        importlib.import_module(f"jitload.{module}" if module != "__init__" else "jitload")


# ---- how long things are ---------------------------------------------------------------------------------------


PACKAGE_FILES = [*(Path("jitload") / f"{module}.py" for module in MODULES), *(Path("jitload") / path for path in TOOLS)]


@pytest.mark.parametrize("path", [*PACKAGE_FILES, *TESTS], ids=str)
def test_a_file_is_read_at_one_sitting(path):
    text = (ROOT / path).read_text()
    assert text.count("\n") <= 350 or path in LONG_FILES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            assert (node.end_lineno or 0) - first.lineno < 60, f"{path}:{node.lineno} {node.name}"


LONG_FILES = {Path("tests/test_signature.py")}  # tables of texts
