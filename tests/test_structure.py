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
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if path.parent == PACKAGE or (path.parent.name != "utils" and path.stem != "__init__")
)
TESTS = sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py"))

# Who may import whom within the package, from the foot to the head; a module may import only what stands above it.
IMPORTS = {
    "errors": "",
    "model": "",
    "settings": "errors",
    "paths": "errors",
    "cache.trust": "errors settings",
    "gpu": "",
    "collector": "",
    "cores": "",
    "device.headers": "",
    "device.lexer": "",
    "cpu.gpu_only": "device.lexer errors",
    "expression_code": "",
    "exchange": "",
    "expression_text": "errors",
    "expression": "errors expression_code expression_text",
    "launch": "errors expression expression_text",
    "arch": "errors gpu settings",
    "device.parameters": "device.lexer launch",
    "device.conditions": "device.lexer",
    "device.host_functions": "device.lexer device.parameters",
    "device.included": "device.conditions device.lexer",
    "device.source": "device.conditions device.lexer device.parameters model",
    "embed": "errors model",
    "sources": "device.included device.source embed errors paths",
    "flags": "errors",
    "triton.source": "model",
    "checks": "arch errors",
    "named": "errors launch sources",
    "request": "arch checks cpu.gpu_only device.host_functions device.source embed errors flags launch named "
    "paths settings sources triton.source",
    "toolchain": "errors gpu settings",
    "cache.recipe": "",
    "cache.inputs": "cache.recipe",
    "cache.notes": "settings",
    "cache.mounts": "",
    "cache.locks": "cache.mounts settings",
    "cache.entry": "cache.inputs cache.notes cache.recipe cache.trust errors settings",
    "cache.inventory": "cache.entry cache.notes cache.recipe errors",
    "identity": "errors settings toolchain",
    "cache.toolless": "cache.entry cache.inputs cache.recipe errors gpu identity settings",
    "cache.bundles": "settings",
    "cache.why": "cache.bundles cache.entry cache.inputs cache.inventory cache.recipe cache.toolless errors settings",
    "cache.prune": "cache.entry cache.inventory cache.locks cache.mounts cache.notes errors settings",
    "host_build": "errors",
    "ninja_runs": "cores errors host_build",
    "cache.store": "cache.entry cache.inputs cache.locks cache.notes cache.prune cache.recipe cache.why errors "
    "host_build settings",
    "cache.archive": "cache.entry cache.inventory cache.locks cache.notes errors settings",
    "cache.remote": "cache.archive cache.entry cache.locks cache.recipe errors settings",
    "cache.tiers": "cache.bundles cache.entry cache.recipe cache.remote cache.toolless cache.trust errors settings",
    "cxx.headers": "device.headers",
    "cxx.spare": "",
    "cxx.precompiled": "cache.entry cache.recipe cxx.spare identity settings sources toolchain",
    "cxx.apart": "cache.entry cache.recipe cache.store cxx.headers cxx.precompiled cxx.spare errors host_build "
    "settings",
    # In a process of its own:
    "cxx.precompiling": "cache.entry cache.recipe cache.store cxx.apart cxx.headers cxx.precompiled cxx.spare settings",
    "runtime": "cache.entry cache.recipe cache.store cache.tiers errors host_build identity settings toolchain",
    "device.aside": "",
    "nvrtc": "arch device.aside errors flags settings sources toolchain",  # all but errors: in upstream's helper alone
    "device.mangled_text": "",
    "device.mangled_codes": "device.mangled_text",
    "device.mangled_values": "device.mangled_codes device.mangled_text",
    "device.mangled": "device.aside device.mangled_codes device.mangled_text device.mangled_values",
    "device.demangle": "device.mangled errors",
    "device.elf": "",
    "device.cubin": "device.demangle device.elf errors model",
    "device.fatbin": "arch device.cubin errors",
    "device.cxxtype": "model",
    "exports": "model",
    "device.probe": "errors",
    "device.written": "device.cxxtype device.lexer device.parameters errors",
    "device.signature": "device.cxxtype device.demangle device.written errors exports model",
    "device.kernels": "checks device.cubin device.headers device.probe device.signature device.source errors model "
    "nvrtc toolchain",
    "choice": "device.kernels errors exports launch model",
    "plan_text": "choice expression launch",
    "codegen": "choice device.cxxtype errors expression launch model plan_text",
    "triton.tables": "codegen errors model",
    "triton.code": "arch choice codegen errors expression expression_code launch model triton.tables",
    "cxx.driver_calls": "",
    "cxx.embedding": "device.cubin device.demangle device.headers device.lexer errors sources",
    "cxx.nvcc": "arch errors host_build identity nvrtc settings sources toolchain",
    "device.images": "device.cubin device.kernels device.signature device.written embed errors exports launch model "
    "request",
    "device.linkers": "arch errors gpu settings toolchain",
    "device.ptx": "arch device.cubin device.fatbin device.linkers device.signature errors flags model request settings "
    "sources",
    "cpu.object_file": "device.elf model",
    "cpu.split_words": "",
    "cpu.split_tree": "device.lexer",
    "cpu.split_macros": "device.lexer",
    "cpu.split_declarations": "cpu.split_tree cpu.split_words device.lexer device.parameters",
    "cpu.split_text": "cpu.split_declarations device.lexer",
    "cpu.split_source": "cpu.split_declarations cpu.split_text cpu.split_tree cpu.split_words device.lexer "
    "device.parameters",
    "cpu.split_scopes": "cpu.split_declarations cpu.split_tree cpu.split_words device.lexer",
    "cpu.split_writes": "cpu.split_declarations cpu.split_scopes cpu.split_words device.parameters",
    "cpu.split_names": "cpu.split_declarations cpu.split_scopes cpu.split_tree cpu.split_words cpu.split_writes "
    "device.parameters",
    "cpu.split_guards": "cpu.split_names cpu.split_words",
    "cpu.split_region": "cpu.split_declarations cpu.split_guards cpu.split_names cpu.split_text cpu.split_tree "
    "device.lexer",
    "cpu.split_strides": "cpu.split_declarations cpu.split_names cpu.split_scopes cpu.split_tree cpu.split_words "
    "device.lexer",
    "cpu.split_subscripts": "cpu.split_names cpu.split_strides cpu.split_text cpu.split_words",
    "cpu.split_turns": "cpu.split_names cpu.split_region cpu.split_strides cpu.split_subscripts cpu.split_text",
    "cpu.split_write": "cpu.split_declarations cpu.split_guards cpu.split_names cpu.split_region cpu.split_scopes "
    "cpu.split_strides cpu.split_text cpu.split_tree cpu.split_turns",
    "cpu.split_inline": "cpu.split_declarations cpu.split_macros cpu.split_source cpu.split_tree device.lexer "
    "device.parameters",
    "cpu.split": "cpu.split_declarations cpu.split_inline cpu.split_macros cpu.split_names cpu.split_region "
    "cpu.split_scopes cpu.split_source cpu.split_strides cpu.split_text cpu.split_tree cpu.split_turns cpu.split_words "
    "cpu.split_write device.kernels device.lexer model",
    "cpu.text": "cpu.gpu_only cpu.object_file cpu.split device.kernels device.probe",
    "cpu.build": "checks cpu.gpu_only cpu.object_file cpu.split cpu.text cxx.headers device.demangle device.kernels "
    "device.probe device.signature device.source errors host_build model runtime toolchain",
    "library": "arch cache.store choice codegen cores cpu.build device.images device.kernels device.ptx "
    "device.source errors host_build ninja_runs request runtime sources toolchain",
    "cxx.link": "cxx.driver_calls cxx.nvcc errors settings toolchain",
    "cxx.text": "cxx.precompiled sources",
    "cxx.steps": "cxx.apart cxx.embedding cxx.nvcc cxx.precompiled cxx.text host_build request sources toolchain",
    "cxx.relocatable": "device.elf host_build toolchain",
    "cxx.host": "cache.store cxx.apart cxx.embedding cxx.headers cxx.link cxx.nvcc cxx.precompiled cxx.relocatable "
    "cxx.steps "
    "device.cubin device.elf device.headers errors host_build library request runtime sources toolchain",
    "triton.versions": "errors",
    "triton.types": "errors model",
    "triton.facts": "model triton.types",
    "triton.globals": "",
    "triton.kernel": "errors",
    "triton.plan": "errors triton.globals triton.kernel triton.types",
    "triton.key": "errors model triton.globals triton.kernel triton.plan triton.versions",
    "triton.examples": "errors triton.kernel triton.plan triton.versions",
    "triton.decided": "errors triton.globals triton.kernel triton.plan",
    "triton.wanted": "arch errors triton.decided triton.examples triton.kernel triton.plan triton.versions",
    "triton.compile": "errors triton.globals triton.kernel triton.key triton.plan triton.versions",
    "triton.record": "device.cubin errors model triton.facts triton.globals triton.versions",
    "triton.grid": "errors launch triton.globals",
    "triton.library": "arch cache.store host_build launch library model ninja_runs request runtime toolchain "
    "triton.code triton.compile triton.grid triton.record triton.source",
    "cpu.library": "cache.store checks cpu.build cxx.headers cxx.link errors host_build identity library "
    "request runtime toolchain",
    "pipeline": "arch cache.entry cache.recipe cache.store cache.tiers cache.why collector cpu.library cxx.host "
    "cxx.nvcc errors identity library ninja_runs request settings toolchain triton.library",
    "function": "model",
    "direct": "exchange function",
    "loader": "device.demangle device.elf direct errors exchange function",
    "placing": "cache.entry cache.store errors request",
    "objects": "arch cache.entry cache.store errors host_build placing request runtime toolchain",
    "serving": "cache.entry cache.store collector errors loader objects paths pipeline placing request",
    "triton.variants": "errors exports triton.kernel triton.plan",
    "triton.request": "arch errors model request settings triton.kernel triton.key triton.plan triton.record "
    "triton.source triton.variants triton.versions triton.wanted",
    "triton.extract": "arch model settings triton.compile triton.kernel triton.record triton.versions triton.wanted",
    "triton.api": "launch loader serving triton.request triton.variants triton.wanted",
    "api": "arch checks device.kernels device.ptx embed errors library loader model named paths request serving "
    "settings sources toolchain",
    "prebuild_requests": "api cache.entry checks errors ninja_runs pipeline request settings sources triton.request "
    "triton.wanted",
    "prebuild_worker": "cache.entry cache.locks cores device.aside errors library ninja_runs prebuild_requests "
    "settings triton.key",
    "prebuild_processes": "cores cxx.spare errors prebuild_worker",
    "prebuilding": "errors prebuild_processes prebuild_requests prebuild_worker",
    "__init__": "api errors launch loader prebuilding triton.api triton.extract",
    "prebuild_files": "errors launch prebuild_requests",
    "cache.shipping": "cache.archive cache.inventory cache.notes errors",
    # What stands beside the road, and nothing above imports.
    "cli": "cache.archive cache.entry cache.inventory cache.prune cache.shipping cache.why errors prebuild_files "
    "prebuilding settings",
    "__main__": "cli",
}
# What stands beside the road: nothing of the package imports these, and they import what they need.
TOOL_IMPORTS = {
    "utils/__init__.py": "",
    "utils/object_file.py": "errors",
    "utils/output.py": "errors",
    "utils/embed_cubin.py": "device.cubin device.fatbin embed errors utils",
    "utils/cubin_source.py": "cxx.embedding errors utils",
    "utils/generate_cubin.py": "device.fatbin device.kernels errors flags library request sources toolchain utils",
    "utils/config.py": "toolchain utils",
}

HEAVY = (
    "cuda", "cupy", "elftools", "filelock", "jax", "jinja2", "ninja", "numpy", "nvidia", "torch", "triton", "tvm_ffi",
)  # fmt: skip


def imports_of(module: str) -> set[str]:
    """Return the modules of the package that one imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path_of(module).read_text())):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("jitload."):
            name = (node.module or "").removeprefix("jitload").removeprefix(".")
            inside = {f"{name}.{alias.name}".removeprefix(".") for alias in node.names}
            found |= {name} if name in MODULES else {"utils"} if name.startswith("utils") else inside & {*MODULES}
        elif isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[2] for alias in node.names if alias.name.startswith("jitload.")}
    return found


def path_of(module: str) -> Path:
    """Return the file of a module, whose name is written with points."""
    return PACKAGE / f"{module.replace('.', '/')}.py"


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
    tree = ast.parse(path_of(module).read_text())
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
    assert imports_of(str(path.with_suffix(""))) == set(TOOL_IMPORTS[str(path)].split())
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
        for node in ast.parse(path_of(module).read_text()).body:
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").split(".")[0])
        assert found & set(HEAVY) <= allowed.get(module, set()), module


def test_every_module_can_be_imported_first():
    for module in MODULES:
        importlib.import_module(f"jitload.{module}" if module != "__init__" else "jitload")


# ---- how long things are ---------------------------------------------------------------------------------------


PACKAGE_FILES = [
    *(path_of(module).relative_to(ROOT) for module in MODULES),
    *(Path("jitload") / path for path in TOOLS),
]


@pytest.mark.parametrize("path", [*PACKAGE_FILES, *TESTS], ids=str)
def test_a_file_is_read_at_one_sitting(path):
    text = (ROOT / path).read_text()
    assert text.count("\n") <= 350 or path in LONG_FILES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            assert (node.end_lineno or 0) - first.lineno < 60, f"{path}:{node.lineno} {node.name}"


LONG_FILES = {Path("tests/test_signature.py")}  # tables of texts
