"""Compare jitload's build of each text in `torch_programs/` with torch's own: `python tests/tools/torch_compare.py --out DIR`.

Results, strides, dtypes, changed arguments and errors must be equal. Each build and its calls have a process of their
own, whose record stays in DIR, so that an interrupted comparison continues. The exit status is 1 if anything differs,
and 2 if a text could not be compared in the time.
"""

import argparse
import logging
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import torch
from torch_differential import described
from torch_programs import PROGRAMS, Program, difference, functions_of, names

PEERS = ("jitload", "torch")
_FILE = re.compile(r"[^\s\"'(\[]*\.(?:cpp|cu|h|cuh)\"?:\d+")
_LOG_TIME = re.compile(r"(?<=\[)F\d{4} [\d:.]+ ")  # CHECK of torch's logging
_TYPE = re.compile(r"\btorch\.(cuda\.)?(sparse\.)?(Byte|Char|Double|Float|Int|Long|Short|Half)Tensor\b")
_BACKTRACE = re.compile(r"\n?Exception raised from .*", re.DOTALL)


def run_program(program: Program, peer: str, record: Path) -> None:
    """Build a text and run its calls; write what happened after each, because a call may end the process.

    A second process continues behind the call that ended the first one.
    """
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("jitload.cpp_extension")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    if peer == "jitload":
        from jitload.cpp_extension import load_inline
    else:
        from torch.utils.cpp_extension import load_inline
    start = time.perf_counter()
    try:
        module = load_inline(**program.arguments())
    except Exception as error:  # noqa: BLE001  the record says it
        _write(record, {"build_error": f"{type(error).__name__}: {error}", "seconds": time.perf_counter() - start})
        return
    previous = pickle.loads(record.read_bytes()) if record.exists() else {}
    outcomes = previous.get("outcomes", [])
    seconds = previous.get("seconds", time.perf_counter() - start)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    functions = functions_of(module)
    is_host_only = device == "cpu" and program.cuda is not None
    calls = [call for call in program.calls if device in call.on or not (is_host_only or call.on == ("cpu",))]
    missing = previous.get("fallback", [message for message in messages if "own headers" in message])
    for call in calls[len(outcomes) :]:
        facts = {"seconds": seconds, "fallback": missing, "outcomes": outcomes, "calling": call.expression}
        _write(record, facts)
        outcomes.append(run_call(call.expression, call.result, functions, device))
    _write(record, {"seconds": seconds, "fallback": missing, "outcomes": outcomes})


def _write(record: Path, facts: dict[str, Any]) -> None:
    record.with_suffix(".new").write_bytes(pickle.dumps(facts))
    record.with_suffix(".new").rename(record)


def run_call(expression: str, expected: str, functions: dict[str, Any], device: str) -> dict[str, Any]:
    """Return what a call returned, what it made of its arguments, and how both differ from the expected result."""
    passed: list[Any] = []

    def recorded(function: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            passed.extend((*arguments, *keywords.values()))
            return function(*arguments, **keywords)

        return call

    scope = {**names(device), **{name: recorded(function) for name, function in functions.items()}}
    outcome: dict[str, Any] = {"call": expression}
    try:
        value = eval(expression, scope)
        if device == "cuda":
            torch.cuda.synchronize()
    except BaseException as error:  # noqa: BLE001  the record says it
        outcome["error"] = (type(error).__name__, _without_files(str(error)))
        value = None
    else:
        outcome["same_as"] = [index for index, argument in enumerate(passed) if argument is value]
        if expected:
            outcome["reference"] = difference(value, eval(expected, names(device)))
    outcome["value"] = _describe(value)
    outcome["arguments"] = [_describe(argument) for argument in passed]
    return outcome


def _without_files(text: str) -> str:
    text = text.replace(" | typing.SupportsIndex", "")  # pybind11 3.0.2 writes it, older ones do not
    return _FILE.sub("FILE:LINE", _LOG_TIME.sub("", _BACKTRACE.sub("", _with_cpp_names(text)))).rstrip("\n")


def _with_cpp_names(text: str) -> str:
    """Undo what torch does to messages before Python sees them: it writes `torch.cuda.FloatTensor` for `CUDAFloatType`."""
    return _TYPE.sub(lambda m: f"{'Sparse' if m[2] else ''}{'CUDA' if m[1] else 'CPU'}{m[3]}Type", text)


def _describe(value: Any) -> Any:
    """Return a value as data that two processes can compare."""
    if isinstance(value, list | tuple):
        return type(value).__name__, [_describe(item) for item in value]
    if isinstance(value, dict):
        return "dict", [(_describe(key), _describe(item)) for key, item in value.items()]
    return type(value).__name__, described(value)


def run_all(programs: list[Program], options: argparse.Namespace) -> None:
    """Run each text with each peer, several at a time."""
    jobs = [(program, peer) for peer in reversed(PEERS) for program in programs]
    jobs = [job for job in jobs if not _record(options.out, *job).exists()]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda job: _run_apart(*job, options), jobs))


def _record(directory: Path, program: Program, peer: str) -> Path:
    return directory / f"{program.name}.{peer}.pickle"


def _run_apart(program: Program, peer: str, options: argparse.Namespace) -> None:
    path = _record(options.out, program, peer)
    extensions = options.out / "extensions" / f"{program.name}.{peer}"
    shutil.rmtree(extensions, ignore_errors=True)  # torch would wait for the lock of a build that was killed
    extensions.mkdir(parents=True)
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(extensions), "MAX_JOBS": "2", "PYTHONFAULTHANDLER": "1"}
    command = [sys.executable, __file__, "--out", str(options.out), "--run", program.name, "--peer", peer]
    partial = path.with_suffix(".partial")
    with (options.out / f"{program.name}.{peer}.log").open("wb") as log:
        while True:
            try:
                status = subprocess.run(
                    command, env=environment, stdout=log, stderr=log, timeout=options.timeout, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                return
            if status == 0:
                partial.rename(path)
                return
            facts = pickle.loads(partial.read_bytes()) if partial.exists() else {}
            if "calling" not in facts:
                tail = Path(log.name).read_text(errors="replace")[-2000:]
                path.write_bytes(pickle.dumps({"build_error": f"exit status {status}: {tail}", "seconds": 0.0}))
                return
            facts["outcomes"].append({"call": facts.pop("calling"), "died": f"exit status {status}"})
            _write(partial, facts)


def compare(program: Program, directory: Path) -> dict[str, Any]:
    """Return the line of the table about one text."""
    paths = [_record(directory, program, peer) for peer in PEERS]
    if not all(path.exists() for path in paths):
        lacking = ", ".join(peer for peer, path in zip(PEERS, paths, strict=True) if not path.exists())
        return {"name": program.name, "status": "not run", "details": [f"no record of {lacking}"]}
    ours, theirs = (pickle.loads(path.read_bytes()) for path in paths)
    line = {"name": program.name, "seconds": [ours["seconds"], theirs["seconds"]], "fallback": ours.get("fallback", [])}
    details = [f"jitload: {ours['build_error']}"] if "build_error" in ours else []
    if program.is_refused_by_torch:
        details += [] if "build_error" in theirs else ["torch builds the text, which is marked as refused"]
        return {**line, "status": "differs" if details else "ours alone", "details": details}
    details += [f"torch: {theirs['build_error']}"] if "build_error" in theirs else []
    deaths = 0
    for outcome, peer_outcome in zip(ours.get("outcomes", []), theirs.get("outcomes", []), strict=False):
        if "died" in peer_outcome and "died" not in outcome:
            deaths += 1  # torch's own extension ended the process, so there is nothing to compare with
        else:
            details += [f"{outcome['call']}: {text}" for text in _differences(outcome, peer_outcome)]
    return {**line, "status": "differs" if details else "equal", "details": details, "torch_died": deaths}


def _differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    texts = [
        f"{key}: jitload {_short(ours.get(key))}, torch {_short(theirs.get(key))}"
        for key in ("died", "error", "value", "arguments", "same_as")
        if ours.get(key) != theirs.get(key)
    ]
    for peer, outcome in zip(PEERS, (ours, theirs), strict=True):
        if outcome.get("reference"):
            texts.append(f"{peer} differs from the reference: {outcome['reference']}")
    return texts


def _short(value: Any) -> str:
    text = (
        value[0] + ": " + value[1]
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str)
        else repr(value)
    )
    return text if len(text) < 600 else text[:600] + "…"


def report(programs: list[Program], directory: Path) -> int:
    """Print the table, write it as JSON, and return the exit status."""
    lines = [compare(program, directory) for program in programs]
    for line in lines:
        ours, theirs = line.get("seconds", (0.0, 0.0))
        print(f"{line['name']:28} {line['status']:10} jitload {ours:6.1f} s   torch {theirs:6.1f} s")
        for detail in (*line["details"], *line.get("fallback", [])):
            print("    " + detail.replace("\n", "\n    "))
    counts = {
        status: sum(line["status"] == status for line in lines)
        for status in ("equal", "ours alone", "differs", "not run")
    }
    fallbacks = [line for line in lines if line.get("fallback")]
    deaths = sum(line.get("torch_died", 0) for line in lines)
    print(
        f"{len(lines)} texts: {counts}; {len(fallbacks)} fell back to torch's headers; {deaths} calls ended torch's process"
    )
    return 1 if counts["differs"] else 2 if counts["not run"] else 0


def main() -> int:
    """Compare the texts that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="texts; default: all")
    parser.add_argument("--out", type=Path, required=True, help="a folder for the records")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="builds at a time")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one build and its calls")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out = options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.run:
        program = next(program for program in PROGRAMS if program.name == options.run)
        run_program(program, options.peer, _record(options.out, program, options.peer).with_suffix(".partial"))
        os._exit(0)  # a failed kernel may hang the interpreter's exit
    programs = [program for program in PROGRAMS if not options.names or program.name in options.names]
    run_all(programs, options)
    return report(programs, options.out)


if __name__ == "__main__":
    raise SystemExit(main())
