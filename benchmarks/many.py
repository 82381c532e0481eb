"""What does each of many kernels in one process cost in memory, in mappings and in processor time?

Every row is a process of its own that loads small kernels of different texts, after a few that do not count. The first
process builds them; the others find their records, or their libraries, in the cache. With a GPU, a kernel is loaded on
it at once, so its memory includes the driver's. Processor time includes that of the compilers.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from children import Answer, answer, child_environment, run_child
from common import machine_line, make_parser, native_arch, print_table, write_json

COLUMNS = ["what", "kernels", "KiB each", "mappings each", "processor, ms each", "note"]
RECORD, LIBRARY = "never", "now"  # values of JITLOAD_LIBRARY
ROWS = [  # the rows with one value share a cache
    ("built, launched from records", RECORD),
    ("records in the cache", RECORD),
    ("built with libraries", LIBRARY),
    ("libraries in the cache", LIBRARY),
]
LEFT_OUT = 20  # kernels that do not count: the first ones import modules
LIBRARIES = 0.1  # the share of the kernels that is also built as libraries, which takes a C++ compiler long


def main() -> None:
    options = read_options()
    if options.child:
        answer(lambda: load_many(options.arch, options.kernels))
        return
    machine = machine_line()
    print(machine, flush=True)
    lines, raw = [], {}
    with tempfile.TemporaryDirectory(prefix="jitload-many-") as folder:
        for what, library in ROWS:
            count = options.kernels if library == RECORD else max(int(options.kernels * LIBRARIES), 1)
            os.environ.update(child_environment(), JITLOAD_LIBRARY=library)
            raw[what], problem = run_child(
                __file__, "jitload", Path(folder, library), {"arch": options.arch, "kernels": count}
            )
            lines.append([what, str(count), *(f"{value:.1f}" for (value,) in raw[what].values()), problem])
    print_table(COLUMNS, [[*line[:2], *(line[2:-1] or ["-"] * 3), line[-1]] for line in lines])
    write_json(options.json, {"machine": machine, "rows": raw})


def read_options() -> argparse.Namespace:
    parser = make_parser(__doc__, peers=False)
    parser.add_argument("--kernels", type=int, default=1000, help="how many are loaded from records")
    parser.add_argument("--arch", default=native_arch() or "sm_90a", help="architecture to compile for")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def load_many(arch: str, count: int) -> Answer:
    """Load the kernels, and return what each costs."""
    import tvm_ffi  # noqa: F401  not counted
    from sources import kernel_text

    import jitload

    functions = {"add_one": jitload.Launch(grid="ceil_div(n, 256)", block=256)}

    def load(number: int) -> object:
        module = jitload.load_inline("many", cuda_sources=kernel_text(number), functions=functions, arch=arch)
        return module.add_one

    kept = [load(number) for number in range(LEFT_OUT)]
    before = costs()
    kept += [load(LEFT_OUT + number) for number in range(count)]
    kib, mappings, seconds = ([(new - old) / count] for old, new in zip(before, costs(), strict=True))
    return {"kib": kib, "mappings": mappings, "processor_ms": [seconds[0] * 1000]}


def costs() -> tuple[float, float, float]:
    """Return the resident memory of this process in KiB, its mappings, and the processor time of all its processes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    mappings = len(Path("/proc/self/maps").read_text().splitlines())
    return pages * os.sysconf("SC_PAGESIZE") / 1024, mappings, sum(os.times()[:4])


if __name__ == "__main__":
    main()
