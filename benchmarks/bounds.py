"""For how many pointers of kernels does `f.extents` know what a launch touches?

    python benchmarks/bounds.py [DIRECTORY …]

The kernels are those of `.cu` files and of strings in Python files, by default in tests/ and examples/. Sources that
NVRTC does not compile alone, and templates without instances, are left out. The last lines count the reasons for what
is not known. It takes some minutes.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jitload
from jitload.errors import JitLoadError

ROOT = Path(__file__).parent.parent


def texts_in(path: Path) -> Iterator[str]:
    """Yield the CUDA sources in a file."""
    if path.suffix == ".cu":
        yield path.read_text()
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "__global__" in node.value:
            yield node.value


def extents_in(text: str) -> dict[tuple[str, str], str | None]:
    """Return for each pointer of each kernel why its extent is not known, or None if it is."""
    try:
        module = jitload.load_inline("bounds", cuda_sources=text, arch="sm_90a")
    except (JitLoadError, TypeError, ValueError):
        return {}
    reasons = {}
    for name in module:
        function = module[name]
        if not hasattr(function, "extents"):  # a function of the host
            continue
        pointers = {parameter.name for parameter in function.kernel.parameters if parameter.kind == "pointer"}
        reasons |= {(name, key): e.reason or None for key, e in function.extents.items() if key in pointers}
    return reasons


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="*", type=Path, default=[ROOT / "tests", ROOT / "examples"])
    files = [f for d in parser.parse_args().directories for f in sorted(d.rglob("*")) if f.suffix in (".py", ".cu")]
    texts = list(dict.fromkeys(text for file in files for text in texts_in(file)))
    with ThreadPoolExecutor(2) as pool:
        found = [reason for reasons in pool.map(extents_in, texts) for reason in reasons.values()]
    known = found.count(None)
    print(f"{len(texts)} sources, {len(found)} pointers, {known} known ({known / len(found):.0%})")
    for reason, count in Counter(re.sub(r"'.*?'|\d+", "…", r) for r in found if r).most_common():
        print(f"{count:5} {reason}")


if __name__ == "__main__":
    main()
