"""Embed cubins or fatbins in an object file, as a step of any build system.

    python -m jitload.utils.embed_cubin --output-obj new.o --input-obj old.o --cubin kernel.cubin --name my_kernels

`old.o` is compiled from C++ with `TVM_FFI_EMBED_CUBIN(my_kernels)`, which includes the launcher header of jitload or of
tvm-ffi. The options, the exit codes and the function `embed_cubin` are the same as in `tvm_ffi.utils.embed_cubin`;
neither ld nor objcopy is needed.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jitload.cuda.fatbin import is_fatbin, read_fatbin
from jitload.elf.cubin import is_unknown_format, read_cubin
from jitload.elf.object import ObjectFile
from jitload.errors import JitLoadError, LoadError
from jitload.request.cubins import check_cubin_name
from jitload.toolchain.private_files import replace_file
from jitload.words import in_options

PathLike = str | os.PathLike[str]
_log = logging.getLogger(__name__)


def embed_cubin(
    cubin_path: PathLike,
    input_obj_path: PathLike,
    output_obj_path: PathLike,
    name: str,
    verbose: bool = False,  # noqa: FBT001, FBT002  upstream's signature
) -> None:
    """Embed a cubin or fatbin in an object file whose C++ contains `TVM_FFI_EMBED_CUBIN(name)`.

    The embedded symbols are local to the object file, so several object files of one library may use the same name. To
    embed several cubins, call this function once for each. If an error is raised, nothing has been written.

    Args:
        cubin_path: The cubin or fatbin.
        input_obj_path: The object file.
        output_obj_path: The object file to write, which may be the input. Its directory is created.
        name: The name in `TVM_FFI_EMBED_CUBIN(name)`.
        verbose: Whether to print what is embedded.

    Raises:
        FileNotFoundError: The cubin or the object file does not exist.
        JitLoadError: The cubin, the object file or the name is not valid. A JitLoadError is a RuntimeError.

    Example:
        `embed_cubin("kernel.cubin", "old.o", "new.o", "my_kernels")`
    """
    _embed_cubins([(name, Path(cubin_path))], Path(input_obj_path), Path(output_obj_path), verbose=verbose)


def _embed_cubins(cubins: Sequence[tuple[str, Path]], source: Path, output: Path, *, verbose: bool) -> None:
    images = [read_cubin_file(name, path, output) for name, path in cubins]
    data = _read_file(source, "Input object file")
    for (name, path), image in zip(cubins, images, strict=True):
        object_file = ObjectFile(data, path=str(source))
        data = object_file.embed(name, image)
        missing = object_file.missing_cubins()
        if name not in missing:
            names = ", ".join(missing) or "none"
            _log.warning("%s has no TVM_FFI_EMBED_CUBIN(%s); names without a cubin: %s", source, name, names)
        if verbose:
            print(f"{output}: {source.name} with {path} ({len(image)} bytes) as {name}")
    replace_file(output, data)


def read_cubin_file(name: str, path: Path, output: Path) -> bytes:
    """Check a cubin or fatbin and its name, and return the file's bytes.

    A file in an unknown format is accepted with a warning, because the user's program may decompress it. tvm-ffi's tool
    accepts such files, too.
    """
    check_cubin_name(name, "--name is")
    image = _read_file(path, "CUBIN file")
    if output.exists() and output.samefile(path):
        raise LoadError(f"the output {output} is the cubin itself: choose another path")
    if is_fatbin(image):
        read_fatbin(image, name=str(path))
    elif is_unknown_format(image):
        _log.warning("%s is neither a cubin nor a fatbin: it begins with %r; it is embedded as it is", path, image[:8])
    else:
        read_cubin(image, name=str(path))
    return image


def _read_file(path: Path, description: str) -> bytes:
    if not path.exists():
        raise FileNotFoundError(f"{description} not found: {path}")
    return path.read_bytes()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return the exit status: 0, 1 for a missing file, 2 for bad input, or 3 for any other OSError."""
    parser = argparse.ArgumentParser(
        prog="python -m jitload.utils.embed_cubin",
        description="Embed a cubin in an object file whose C++ says TVM_FFI_EMBED_CUBIN(NAME).",
    )
    parser.add_argument("--output-obj", required=True, metavar="PATH", help="the object file to write")
    parser.add_argument("--input-obj", required=True, metavar="PATH", help="the object file of the C++")
    add_cubin_options(parser)
    options = parser.parse_args(arguments)

    def embed() -> None:
        source, output = Path(options.input_obj), Path(options.output_obj)
        _embed_cubins(read_cubin_options(options), source, output, verbose=options.verbose)
        if not options.verbose:
            print(f"Created {options.output_obj}")

    return run_command(embed)


# ---- shared with the commands of the CMake package -----------------------------------------------------------------


def add_cubin_options(parser: argparse.ArgumentParser) -> None:
    """Add `--cubin`, `--name` and `--verbose`."""
    repeat = "; for several cubins, repeat both options"
    parser.add_argument("--cubin", required=True, action="append", metavar="PATH", help="the cubin or fatbin" + repeat)
    parser.add_argument(
        "--name", required=True, action="append", metavar="NAME", help="as in TVM_FFI_EMBED_CUBIN(NAME)"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print what is embedded")


def read_cubin_options(options: argparse.Namespace) -> list[tuple[str, Path]]:
    """Return the name and the path of each cubin in parsed options."""
    if len(options.cubin) != len(options.name):
        raise JitLoadError(
            f"there are {len(options.cubin)} --cubin and {len(options.name)} --name: give both for each cubin"
        )
    return list(zip(options.name, map(Path, options.cubin), strict=True))


def run_command(command: Callable[[], None], options: Mapping[str, str] | None = None) -> int:
    """Run a command. Return the exit status: 0, 1 for a missing file, 2 for bad input, or 3 for any other OSError.

    `options` maps Python arguments to command-line options, such as `{"arch": "--arch "}`. Error messages then show the
    option and not the argument.
    """
    try:
        command()
    except (JitLoadError, OSError) as error:
        message = in_options(error, options) if options and isinstance(error, JitLoadError) else error
        print(f"Error: {message}", file=sys.stderr)
        if isinstance(error, FileNotFoundError):
            return 1
        return 2 if isinstance(error, JitLoadError) else 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
