"""One function of C++ by hand, found in its cache by each loader, and built by one process for many.

`python cache_peers.py PEER find FIRST COUNT` loads so many modules and prints the seconds of each; `… want NUMBER FD`
says that it is ready, waits until the other end of a pipe is closed, loads one module and prints when it had it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PATIENCE_S = 180.0  # for one process of a peer
FURTHER = 5  # modules that are found after the first
_HERE = Path(__file__)
_CODE = 'extern "C" int add{number}(int a, int b) {{ return a + b; }}\n'


# ---- the loaders, in a process of their own ------------------------------------------------------------------------


def _jitload() -> Callable[[int], object]:
    import tvm_ffi  # noqa: F401

    import jitload

    return lambda number: jitload.load_inline(
        f"peer{number}", cpp_sources=_CODE.format(number=number), functions=f"add{number}"
    )


def _tvm_ffi() -> Callable[[int], object]:
    import tvm_ffi.cpp

    return lambda number: tvm_ffi.cpp.load_inline(
        f"peer{number}", cpp_sources=_CODE.format(number=number), functions=f"add{number}"
    )


def _torch() -> Callable[[int], object]:
    from torch.utils import cpp_extension

    load: Any = cpp_extension.load  # untyped

    def find(number: int) -> object:
        source = Path(os.environ["TORCH_EXTENSIONS_DIR"]).parent / f"peer{number}.cpp"
        if not source.exists():
            fresh = source.with_suffix(f".{os.getpid()}")
            fresh.write_text(_CODE.format(number=number))
            fresh.replace(source)
        return load(f"peer{number}", sources=[str(source)], is_python_module=False)

    return find


PEERS: dict[str, Callable[[], Callable[[int], object]]] = {"jitload": _jitload, "tvm-ffi": _tvm_ffi, "torch": _torch}


def _find(find: Callable[[int], object], first: int, count: int) -> list[float]:
    seconds = []
    for number in range(first, first + count):
        start = time.perf_counter()
        find(number)
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    peer, what, first, last = sys.argv[1:]
    find = PEERS[peer]()
    if what == "find":
        print(f"\n{json.dumps(_find(find, int(first), int(last)))}")
        return
    print("\nready", flush=True)
    os.read(int(last), 1)
    find(int(first))
    print(time.time(), flush=True)
    os.close(1)  # the answer ends here
    sys.stdin.readline()  # the ends of processes are not what is measured


# ---- what is measured of them --------------------------------------------------------------------------------------


def command(*words: object) -> list[str]:
    return [sys.executable, str(_HERE), *map(str, words)]


def find_modules(peer: str, env: Mapping[str, str], first: int, count: int) -> list[float]:
    """Return the times in which a new process loaded so many modules."""
    words = command(peer, "find", first, count)
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def fill(cache: Path, count: int) -> None:
    """Make a cache large: copies of the first module's directory, under other names."""
    (place,) = list(cache.glob("peer0*"))[:1]
    for number in range(count):
        shutil.copytree(place, cache / f"other{number}-{'0' * 64}", copy_function=os.link)


def together(commands: Sequence[Sequence[str]], env: Mapping[str, str]) -> float:
    """Return the time from one common signal until the last of some processes had what it wanted.

    They print "ready", read from the pipe whose number is added to their command until it is closed, and print when
    they were done.
    """
    signal, ours = os.pipe()
    waiting = [
        subprocess.Popen(
            [*words, str(signal)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            pass_fds=[signal],
        )
        for words in commands
    ]
    try:
        for process in waiting:
            assert process.stdout is not None
            while (line := process.stdout.readline()) != "ready\n":
                if not line:
                    raise RuntimeError("a process failed before it began")
        time.sleep(0.2)  # the last of them gets to its wait
        start = time.time()
        os.close(ours)
        ends = [process.stdout.read() for process in waiting if process.stdout is not None]
        if any(process.wait(PATIENCE_S) for process in waiting if process.communicate("\n")):
            raise RuntimeError("a process failed")
        return max(float(text.split()[-1]) for text in ends) - start
    finally:
        os.close(signal)
        for process in waiting:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
