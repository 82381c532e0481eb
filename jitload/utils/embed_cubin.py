"""An object file and cubins or fatbins in, one object file with all of them out: for build systems of a user's own.

    python -m jitload.utils.embed_cubin --output-obj new.o --input-obj old.o --cubin kernel.cubin --name my_kernels

`old.o` is C++ with `TVM_FFI_EMBED_CUBIN(my_kernels)`, compiled with our launcher header or with tvm-ffi's. Flags, exit
codes and the function are those of `tvm_ffi.utils.embed_cubin`; neither ld nor objcopy is needed.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from jitload.elf.cubin import is_unknown, read_image
from jitload.elf.fatbin import is_fatbin, read_fatbin
from jitload.elf.object import embed_bytes, read_object
from jitload.embed import check_cubin_name
from jitload.errors import JitLoadError, LoadError
from jitload.utils.output import replace_file, run_command

PathLike = str | os.PathLike[str]
_log = logging.getLogger(__name__)


def embed_cubin(
    cubin_path: PathLike,
    input_obj_path: PathLike,
    output_obj_path: PathLike,
    name: str,
    verbose: bool = False,  # noqa: FBT001, FBT002  upstream's signature
) -> None:
    """Put a cubin or fatbin into an object file whose C++ says `TVM_FFI_EMBED_CUBIN(name)`.

    The symbols are local to the object: several objects of one library may embed cubins under the same name. Several
    cubins are embedded one after the other. Nothing is written unless all is well; the output may be the input.

    Args:
        cubin_path: The cubin, or a fatbin.
        input_obj_path: The object file.
        output_obj_path: The object file to write; its directory is made.
        name: The name in `TVM_FFI_EMBED_CUBIN(name)`.
        verbose: Print what is done.

    Raises:
        FileNotFoundError: One of the two files does not exist.
        JitLoadError: One is not what it should be, or the name is no name. A RuntimeError.

    Example:
        `embed_cubin("kernel.cubin", "old.o", "new.o", "my_kernels")`
    """
    embed_cubins([(name, Path(cubin_path))], Path(input_obj_path), Path(output_obj_path), is_verbose=verbose)


def embed_cubins(cubins: Sequence[tuple[str, Path]], source: Path, output: Path, *, is_verbose: bool = False) -> None:
    """Put several cubins into an object file; see `embed_cubin`."""
    images = [read_cubin_file(name, path, output) for name, path in cubins]
    data = _read(source, "Input object file")
    for (name, path), image in zip(cubins, images, strict=True):
        file = read_object(data, path=str(source))
        data = embed_bytes(file, name, image)
        if name not in file.wanted:
            there = ", ".join(file.wanted) or "none"
            _log.warning("%s has no TVM_FFI_EMBED_CUBIN(%s); names without a cubin: %s", source, name, there)
        if is_verbose:
            print(f"{output}: {source.name} with {path} ({len(image)} bytes, {_contents(image)}) as {name}")  # noqa: T201
    replace_file(output, data)


def read_cubin_file(name: str, path: Path, output: Path) -> bytes:
    """Return the bytes of a cubin or fatbin that is to be embedded under a name into an output.

    Bytes that nobody here knows are taken as upstream's tool takes them, with a warning: a program may unpack them.
    """
    check_cubin_name(name, "--name")
    image = _read(path, "CUBIN file")
    if output.exists() and output.samefile(path):
        raise LoadError(f"the output, {output}, is the cubin itself")
    if is_fatbin(image):
        read_fatbin(image, name=str(path))
    elif is_unknown(image):
        _log.warning("%s is neither a cubin nor a fatbin: it begins with %r; it is embedded as it is", path, image[:8])
    else:
        read_image(image, name=str(path))
    return image


def _contents(image: bytes) -> str:
    if is_unknown(image):
        return "no cubin"
    if is_fatbin(image):
        return "fatbin, " + "; ".join(_images(entry.arch, entry.kernels) for entry in read_fatbin(image))
    facts = read_image(image)
    return _images(facts.arch, [kernel.symbol for kernel in facts.kernels] or ["no kernels"])


def _images(arch: str, kernels: Sequence[str]) -> str:
    return f"{arch}: {', '.join(kernels)}" if kernels else arch


def _read(path: Path, what: str) -> bytes:
    if not path.exists():
        raise FileNotFoundError(f"{what} not found: {path}")
    return path.read_bytes()


def add_cubin_options(parser: argparse.ArgumentParser) -> None:
    """Add `--cubin`, `--name` and `--verbose`."""
    several = "; several cubins: give both flags for each"
    parser.add_argument("--cubin", required=True, action="append", metavar="PATH", help="the cubin or fatbin" + several)
    parser.add_argument(
        "--name", required=True, action="append", metavar="NAME", help="as in TVM_FFI_EMBED_CUBIN(NAME)"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="say what was embedded")


def read_cubin_options(given: argparse.Namespace) -> list[tuple[str, Path]]:
    """Return the names and the cubins that were given."""
    if len(given.cubin) != len(given.name):
        raise JitLoadError(
            f"there are {len(given.cubin)} --cubin and {len(given.name)} --name: give both for each cubin"
        )
    return list(zip(given.name, map(Path, given.cubin), strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 1 for a missing file, 2 for one that is not what it should be, 3 for anything else."""
    parser = argparse.ArgumentParser(
        prog="python -m jitload.utils.embed_cubin",
        description="Embed a cubin into an object file whose C++ says TVM_FFI_EMBED_CUBIN(NAME).",
    )
    parser.add_argument("--output-obj", required=True, metavar="PATH", help="the object file to write")
    parser.add_argument("--input-obj", required=True, metavar="PATH", help="the object file of the C++")
    add_cubin_options(parser)
    given = parser.parse_args(arguments)

    def work() -> None:
        source, output = Path(given.input_obj), Path(given.output_obj)
        embed_cubins(read_cubin_options(given), source, output, is_verbose=given.verbose)
        if not given.verbose:
            print(f"Created {given.output_obj}")  # noqa: T201

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
