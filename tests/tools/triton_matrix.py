"""Extraction checked against releases of Triton: one virtual environment each, and no GPU.

    python tests/tools/triton_matrix.py 3.6.0 3.7.0 3.9.0  # makes them beside the checkout, in .triton/, and keeps them
    python tests/tools/triton_matrix.py --directory /tmp/triton oldest middle newest

With `--here` it checks the Triton of this interpreter; that is what it runs in each environment. What is expected of a
release stands in `FACTS`, written down from its own metadata and machine code, and not taken from jitload.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RELEASES = {"oldest": "3.6.0", "middle": "3.7.0", "newest": "3.9.0"}
NEEDED = ("apache-tvm-ffi", "filelock", "setuptools")


# By release, the flags of a descriptor in plain parameters.
FACTS = {"3.6": 1, "3.7": 2, "3.8": 2, "3.9": 2}


def main() -> None:
    """Make the environments that are missing, and run the checks in each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", default=list(RELEASES), help="versions, or oldest, middle, newest")
    parser.add_argument("--directory", type=Path, default=ROOT / ".triton", help="where the environments are")
    parser.add_argument("--here", action="store_true", help="check the Triton of this interpreter")
    options = parser.parse_args()
    if options.here:
        check_here()
        return
    failed = [version for name in options.releases if not check_release(version := RELEASES.get(name, name), options)]
    sys.exit(f"Triton {', '.join(failed)}: see above" if failed else 0)


def check_release(version: str, options: argparse.Namespace) -> bool:
    """Check one release in its own environment, which is made if it is not there."""
    start = time.monotonic()
    directory = options.directory.absolute() / version
    python = directory / "bin" / "python"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON_", "PYTHON"))}
    if not python.exists():
        venv.create(directory, with_pip=False)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-compile"]
        subprocess.run([*pip, f"triton=={version}", *NEEDED], env=kept, check=True)
    ready = time.monotonic()
    with tempfile.TemporaryDirectory() as cache:
        search = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
        env = {**kept, "PYTHONPATH": search, "TRITON_CACHE_DIR": cache, "TRITON_DEFAULT_FP_FUSION": "1"}
        done = subprocess.run([str(python), "-B", __file__, "--here"], env=env, check=False)
    words = "as expected" if done.returncode == 0 else "NOT as expected"
    print(f"Triton {version}: {words} ({ready - start:.0f} s to install, {time.monotonic() - ready:.0f} s to check)")  # noqa: T201  the report
    return done.returncode == 0


def check_here() -> None:
    """Check the Triton of this interpreter."""
    import triton

    flags = FACTS.get(".".join(triton.__version__.split(".")[:2]))
    if flags is None:
        sys.exit(f"Triton {triton.__version__} is not in the table: look what it changed, and write that down")
    for check in CHECKS:
        check(flags)


def extract(kernel: Any, *args: Any, **options: Any) -> Any:
    import jitload
    from jitload.elf.cubin import read_cubin

    cubin = jitload.extract_triton(kernel, *args, **{"arch": "sm_90", **options})
    facts = cubin.triton
    image = read_cubin(cubin.data).kernels[0]
    sizes = [parameter.size for parameter in facts.kernel.parameters] + [8] * facts.hidden_pointers
    assert sizes == [slot.size for slot in image.parameters], (sizes, image.parameters)
    assert image.max_threads == facts.num_warps * facts.warp_size
    assert image.symbol == facts.kernel.symbol
    return facts


def of_a_signature(flags: int) -> None:
    """Types, hints, constexprs; what is 1 or None is no parameter of the machine code."""
    import triton_kernels as kernels
    from triton_support import ADD, assumptions

    facts = extract(kernels.vector_add, signature=ADD, BLOCK=1024, num_warps=8)
    assert facts.hidden_pointers == 2
    assert assumptions(facts) == [(name, "multiple_of", 16) for name in ("x_ptr", "y_ptr", "out_ptr")]
    assert (facts.num_warps, facts.constexprs) == (8, (("BLOCK", 1024),))
    signature = {"x_ptr": "*fp32:16", "bias_ptr": None, "out_ptr": "*fp32", "n": "i32", "stride": "i32:1"}
    facts = extract(kernels.optional_bias, signature=signature, BLOCK=64)
    assert [p.name for p in facts.kernel.parameters] == ["x_ptr", "out_ptr", "n"]
    assert [a.name for a in facts.arguments] == list(signature)


def of_examples(flags: int) -> None:
    """The same rules as at a launch of Triton's."""
    import triton_kernels as kernels
    from triton_support import Tensor, assumptions

    facts = extract(kernels.optional_bias, Tensor(), None, Tensor(address=4), 64, 1, BLOCK=128)
    assert assumptions(facts) == [
        ("x_ptr", "multiple_of", 16), ("bias_ptr", "null", 0), ("n", "multiple_of", 16), ("stride", "equal_to", 1),
    ]  # fmt: skip
    facts = extract(kernels.scalars, Tensor(), True, 3, 17, 2**40, 2**63, 1.5, BLOCK=128)
    assert [a.type for a in facts.arguments] == ["*fp32", "u1", "i32", "i32", "i64", "u64", "fp32"]
    assert [a.parameter for a in facts.assumptions] == ["out_ptr", "big", "huge"]
    facts = extract(kernels.unspecialised, Tensor(), 1, 64, BLOCK=128)
    assert assumptions(facts) == [("x_ptr", "multiple_of", 16)]


def of_scalars_and_names(_: int) -> None:
    """Every scalar has its own width, and the symbol is the one that Triton chose."""
    import triton_kernels as kernels

    widths = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u64": 8, "fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8}
    for text, size in widths.items():
        facts = extract(kernels.store_scalar, signature={"out_ptr": "*fp64", "x": text})
        assert facts.kernel.parameters[1].size == size, text
    facts = extract(kernels.with_repr, signature={"x_ptr": "*fp32", "n": "i32"}, BLOCK=64)
    assert facts.kernel.symbol.startswith("renamed"), facts.kernel.symbol


def of_dots_and_clusters(_: int) -> None:
    """Tensor cores with dynamic shared memory, on two architectures; several blocks a program."""
    from triton_libraries import LIBRARIES

    kernel, options = LIBRARIES["persistent_matmul"]
    wishes = {key: value for key, value in options.items() if key != "grid"}
    for arch in ("sm_80", "sm_90"):
        assert extract(kernel, arch=arch, **wishes).shared_bytes > 0
    kernel, options = LIBRARIES["vector_add"]
    facts = extract(kernel, signature=options["signature"], BLOCK=1024, num_ctas=2)
    assert facts.num_ctas == 2
    assert facts.cluster[0] * facts.cluster[1] * facts.cluster[2] == 2


def of_tuples(flags: int) -> None:
    """Tuples come flat."""
    import triton_kernels as kernels

    signature = {"pair": ("*fp32:16", "*fp32", "i32:16"), "n": "i32"}
    facts = extract(kernels.of_a_tuple, signature=signature, BLOCK=128)
    assert [a.name for a in facts.arguments] == ["pair_0", "pair_1", "pair_2", "n"]


def of_descriptors(flags: int) -> None:
    """Descriptors made on the host, as CUtensorMap and as plain parameters; on the device, with scratch memory."""
    import triton_kernels as kernels
    from triton_support import DESCRIPTORS, PERSISTENT

    facts = extract(kernels.persistent_matmul, signature=DESCRIPTORS, **PERSISTENT)
    assert [p.size for p in facts.kernel.parameters[:5]] == [128, 4, 4, 8, 8]
    assert [(d.elem_size, d.swizzle, d.is_expanded) for d in facts.descriptors] == [(2, 3, False)] * 3
    facts = extract(kernels.persistent_matmul, signature=DESCRIPTORS, arch="sm_80", **PERSISTENT)
    assert [(d.is_expanded, d.flags) for d in facts.descriptors] == [(True, flags)] * 3
    blocks = {name: PERSISTENT[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")}
    facts = extract(kernels.specialised_matmul, signature=DESCRIPTORS, arch="sm_100", num_warps=4, **blocks)
    assert facts.num_warps == 8  # four more that load
    signature = {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "M": "i32", "N": "i32"}
    facts = extract(kernels.device_descriptor_copy, signature=signature, BLOCK_M=64, BLOCK_N=64)
    assert facts.scratch_bytes > 0


CHECKS: tuple[Callable[[int], None], ...] = (
    of_a_signature,
    of_examples,
    of_scalars_and_names,
    of_dots_and_clusters,
    of_tuples,
    of_descriptors,
)

if __name__ == "__main__":
    main()
