"""How much faster are many small kernels built ahead of time by several processes?

"One after another" is a loop of `build_inline` in one process; the other rows are `prebuild`. Each starts with a cache
that holds only the runtime library, which every machine builds once. Processor time is that of all processes.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from children import child_environment
from common import machine_line, make_parser, print_table, write_json

COLUMNS = ["what", "seconds", "processor", "note"]
WAYS_AHEAD = "prebuild, {} processes"
WAYS = {"one after another": 0, "prebuild, one process": 1, WAYS_AHEAD: 2}
CHILD = """
import resource, sys, time, json
sys.path.insert(0, {folder!r})
import jitload
from sources import kernel_text
requests = [{{"name": "many", "cuda_sources": kernel_text(i), "arch": {arch!r}}} for i in range({count})]
jitload.build_inline("first", cuda_sources=kernel_text(0), arch={arch!r})
start = time.perf_counter()
if {jobs}:
    jitload.prebuild(requests, jobs={jobs}, progress=False).check()
else:
    for request in requests:
        jitload.build_inline(**request)
print(time.perf_counter() - start)
"""


def main() -> None:
    parser = make_parser(__doc__, peers=False)
    parser.add_argument("--kernels", type=int, default=200, help="how many")
    parser.add_argument("--jobs", type=int, default=2, help="processes of prebuild")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts: other work only adds")
    parser.add_argument("--arch", default="sm_90a", help="architecture to compile for")
    options = parser.parse_args()
    machine = machine_line()
    print(machine, flush=True)
    runs: dict[str, list[tuple[float, float]]] = {}
    for _ in range(options.rounds):
        for what, jobs in WAYS.items():
            count = options.jobs if jobs > 1 else jobs
            runs.setdefault(what.format(count), []).append(build_all(count, options.kernels, options.arch))
    best = {what: (min(s for s, _ in rows), min(c for _, c in rows)) for what, rows in runs.items()}
    loop, alone, ahead = (seconds for seconds, _ in best.values())
    ahead_of = f"{loop / ahead:.2f} x faster, {alone / ahead:.2f} x one process"
    notes = {WAYS_AHEAD.format(options.jobs): ahead_of}
    print_table(COLUMNS, [[what, f"{s:.2f}", f"{c:.2f}", notes.get(what, "")] for what, (s, c) in best.items()])
    write_json(options.json, {"machine": machine, "best": best, "runs": runs})


def build_all(jobs: int, count: int, arch: str) -> tuple[float, float]:
    """Return the time that all builds took, and the processor's time in all processes."""
    with tempfile.TemporaryDirectory(prefix="jitload-bench-prebuild-") as folder:
        environment = {**child_environment(), "JITLOAD_CACHE_DIR": folder}
        code = CHILD.format(folder=str(Path(__file__).parent), jobs=jobs, count=count, arch=arch)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return float(done.stdout), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
