"""The number that stands for jitload's code in cache keys must be raised if libraries of earlier releases are stale.

After a change of what goes into libraries, decide whether the number changes, and write the digests again:

    JITLOAD_REGENERATE=1 python -m pytest tests/test_abi.py
"""

import ast
import hashlib
import io
import json
import os
import re
import shutil
import tokenize
from pathlib import Path

import pytest

from jitload.toolchain import fingerprints
from jitload.toolchain.fingerprints import ABI, own_identity

ROOT = Path(__file__).parent.parent
RECORDED = Path(__file__).parent / "data" / "abi.json"
# What goes into a library, or decides what a compiler reads.
SUBJECTS = {
    "the templates": ["templates/*.jinja"],
    "the runtime": ["jitload/runtime/**/*", "jitload/building/native.py", "jitload/building/runtime.py"],
    "the headers": ["jitload/include/**/*", "jitload/cuda/headers.py", "jitload/cuda/predefined.py"],
    "the record": ["jitload/codegen/*.py", "jitload/expressions/compiler.py", "jitload/triton/wrapper.py"],
    "the options": [
        *("jitload/request/options.py", "jitload/kernels/compilation.py", "jitload/cpu/build.py"),
        *("jitload/cuda/nvrtc.py", "jitload/cuda/program.py"),
        *("jitload/host_cpp/nvcc.py", "jitload/host_cpp/steps.py", "jitload/host_cpp/link.py"),
    ],
    "the edited sources": [
        *("jitload/cpptext/host_functions.py", "jitload/cpu/text.py", "jitload/kernels/host_code.py"),
        *("jitload/request/torch_text.py", "jitload/request/torch_operators.py", "jitload/host_cpp/functions.py"),
    ],
}
_C_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)


def digest(patterns: list[str]) -> str:
    """Return a digest of files that comments and docstrings do not change."""
    paths = sorted({path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()})
    assert all(any(ROOT.glob(pattern)) for pattern in patterns)
    result = hashlib.sha256()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        code = python_code(text) if path.suffix == ".py" else c_code(text)
        result.update(f"{path.relative_to(ROOT)}\0{code}\0".encode())
    return result.hexdigest()[:16]


def c_code(text: str) -> str:
    return " ".join(_C_COMMENT.sub(lambda match: match[1] or " ", text).split())


def python_code(text: str) -> str:
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())


def test_the_number_is_raised_or_kept_on_purpose():
    current = {"ABI": ABI, **{subject: digest(patterns) for subject, patterns in SUBJECTS.items()}}
    if os.environ.get("JITLOAD_REGENERATE") == "1":
        RECORDED.write_text(json.dumps(current, indent=1) + "\n")
    recorded = json.loads(RECORDED.read_text())
    changed = [subject for subject in {**recorded, **current} if recorded.get(subject) != current.get(subject)]
    if changed:
        pytest.fail(
            f"{', '.join(changed)} changed. If libraries in caches must not be used any more, because they would be "
            "wrong or could not be loaded, raise ABI in toolchain/fingerprints.py. Then write the digests again: "
            "JITLOAD_REGENERATE=1 python -m pytest tests/test_abi.py",
            pytrace=False,
        )


def test_comments_do_not_change_a_digest():
    assert c_code('int x = 1;  // one\n/* "two" */ char* s = "// three";') == 'int x = 1; char* s = "// three";'
    assert c_code("int x;") != c_code("int y;")
    assert python_code('"""Doc."""\nx = "# 1"  # one\n\ndef f():\n    "doc"\n') == 'x = "# 1"\ndef f():'


def test_a_release_is_in_the_key_by_its_number_and_a_checkout_by_its_files(tmp_path, monkeypatch):
    """A release does not empty a cache; an edit in a checkout, or under an editable install, takes effect at once."""
    package = tmp_path / "checkout" / "jitload"
    (package / "runtime").mkdir(parents=True)
    (package / "runtime" / "call.cc").write_text("int first;")
    monkeypatch.setattr(fingerprints, "_PACKAGE", package)

    def identity() -> str:
        own_identity.cache_clear()
        return own_identity(tmp_path / "cache")

    in_checkout = identity()
    elsewhere = shutil.copytree(package, tmp_path / "clone" / "jitload", copy_function=shutil.copyfile)
    with monkeypatch.context() as patches:
        patches.setattr(fingerprints, "_PACKAGE", elsewhere)
        assert identity() == in_checkout
    (package / "runtime" / "call.cc").write_text("int second;")
    assert in_checkout.startswith(f"ABI {ABI} (a checkout) ")
    edited = identity()
    assert edited != in_checkout
    (package / "native").mkdir()
    (package / "native" / "runtime.o").write_bytes(b"what the other files compile to")
    assert identity() == edited
    (package / "templates").mkdir()  # as in a wheel
    assert identity() == f"ABI {ABI}"
    own_identity.cache_clear()
