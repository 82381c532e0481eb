"""An object file and a cubin in, one object file with both out: for build systems of a user's own.

    python -m jitload.utils.embed_cubin --output-obj new.o --input-obj old.o --cubin kernel.cubin --name my_kernels

`old.o` is C++ with `TVM_FFI_EMBED_CUBIN(my_kernels)`, compiled with our launcher header or with tvm-ffi's. Flags, exit
codes and the function are those of `tvm_ffi.utils.embed_cubin`; neither ld nor objcopy is needed.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from jitload.cubin import read_image
from jitload.errors import JitLoadError, LoadError
from jitload.sources import check_cubin_name
from jitload.utils.object_file import embed_bytes, read_object

PathLike = str | os.PathLike[str]
_log = logging.getLogger(__name__)


def embed_cubin(
    cubin_path: PathLike,
    input_obj_path: PathLike,
    output_obj_path: PathLike,
    name: str,
    verbose: bool = False,  # noqa: FBT001, FBT002  upstream's signature
) -> None:
    """Put a cubin into an object file whose C++ says `TVM_FFI_EMBED_CUBIN(name)`.

    The symbols are local to the object: several objects of one library may embed cubins under the same name. Several
    cubins are embedded one after the other. Nothing is written unless all is well; the output may be the input.

    Args:
        cubin_path: The cubin.
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
    cubin, source, output = Path(cubin_path), Path(input_obj_path), Path(output_obj_path)
    check_cubin_name(name, "--name")
    image = _read(cubin, "CUBIN file")
    data = _read(source, "Input object file")
    if output.exists() and output.samefile(cubin):
        raise LoadError(f"the output, {output}, is the cubin itself")
    facts = read_image(image, name=str(cubin))
    file = read_object(data, path=str(source))
    embedded = embed_bytes(file, name, image)
    if name not in file.wanted:
        there = ", ".join(file.wanted) or "none"
        _log.warning("%s has no TVM_FFI_EMBED_CUBIN(%s); names without a cubin: %s", source, name, there)
    _replace_file(output, embedded)
    if verbose:
        kernels = ", ".join(kernel.symbol for kernel in facts.kernels) or "no kernels"
        print(f"{output}: {source.name} with {cubin} ({len(image)} bytes, {facts.arch}: {kernels}) as {name}")  # noqa: T201


def _read(path: Path, what: str) -> bytes:
    if not path.exists():
        raise FileNotFoundError(f"{what} not found: {path}")
    return path.read_bytes()


def _replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 1 for a missing file, 2 for one that is not what it should be, 3 for anything else."""
    parser = argparse.ArgumentParser(
        prog="python -m jitload.utils.embed_cubin",
        description="Embed a cubin into an object file whose C++ says TVM_FFI_EMBED_CUBIN(NAME).",
    )
    option = parser.add_argument
    option("--output-obj", required=True, metavar="PATH", help="the object file to write")
    option("--input-obj", required=True, metavar="PATH", help="the object file of the C++")
    option("--cubin", required=True, metavar="PATH", help="the cubin")
    option("--name", required=True, metavar="NAME", help="the name in TVM_FFI_EMBED_CUBIN(NAME)")
    option("-v", "--verbose", action="store_true", help="say what was embedded")
    given = parser.parse_args(arguments)
    try:
        embed_cubin(given.cubin, given.input_obj, given.output_obj, given.name, given.verbose)
    except FileNotFoundError as error:
        return _fail(error, 1)
    except JitLoadError as error:
        return _fail(error, 2)
    except OSError as error:
        return _fail(error, 3)
    if not given.verbose:
        print(f"Created {given.output_obj}")  # noqa: T201
    return 0


def _fail(error: Exception, code: int) -> int:
    print(f"Error: {error}", file=sys.stderr)  # noqa: T201
    return code


if __name__ == "__main__":
    sys.exit(main())
