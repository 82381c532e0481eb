"""Write a C++ file that embeds cubins for `TVM_FFI_EMBED_CUBIN(name)`.

    python -m jitload.cmake.cubin_source --output kernels.cc --cubin kernel.cubin --name my_kernels

The C++ file contains the paths of the cubins, not their bytes, so it must be compiled again whenever a cubin changes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jitload.errors import JitLoadError
from jitload.host_cpp.embedding import incbin_text
from jitload.toolchain.private_files import replace_file
from jitload.utils.embed_cubin import add_cubin_options, read_cubin_file, read_cubin_options, run_command

_DELIMITER = "jitload_asm"


def cubin_source(cubins: Sequence[tuple[str, Path]]) -> str:
    """Return the text of a C++ file that embeds cubins.

    `cubins` are (name, path) pairs. C++ code uses a cubin by its name, as in `TVM_FFI_EMBED_CUBIN(name)`.
    """
    body = "".join(incbin_text(name, _escape(path)) for name, path in cubins)
    return f"""\
// Written by jitload.cmake.cubin_source.
__asm__(R"{_DELIMITER}(
.pushsection .rodata,"a"
{body}.popsection
){_DELIMITER}");
"""


def _escape(path: Path) -> str:
    text = str(path.absolute())
    if not text.isprintable() or f"){_DELIMITER}" in text:
        raise JitLoadError(
            f"the path {text!r} contains characters that an assembler cannot read: rename or move the cubin"
        )
    return text.replace("\\", "\\\\").replace('"', '\\"')


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0, or 1 for a missing file, 2 for bad input, or 3 for any other OSError."""
    parser = argparse.ArgumentParser(
        prog="python -m jitload.cmake.cubin_source", description="Write a C++ file that embeds cubins."
    )
    parser.add_argument("--output", required=True, metavar="PATH", help="the C++ file to write")
    add_cubin_options(parser)
    options = parser.parse_args(arguments)

    def write_source() -> None:
        cubins, output = read_cubin_options(options), Path(options.output)
        for name, path in cubins:
            read_cubin_file(name, path, output)
        replace_file(output, cubin_source(cubins).encode())

    return run_command(write_source)


if __name__ == "__main__":
    sys.exit(main())
