"""How long does a verdict take? Judges answers to a problem in KernelBench's form, made from templates.

On a GPU, they are files with a Triton kernel, files that only call torch, and with --extensions, files that build a
CUDA extension. Half of them are wrong or broken. Without a GPU, kernels run on the CPU.

With --kernelbench, the path of a checkout of KernelBench, `eval_kernel_against_ref` evaluates the same answers with the
arguments of its scripts/eval_from_generations.py: 5 trials and 100 measurements. The first --each answers get a process
of their own, as in that script. The others share one, which is replaced when an answer has broken it. The last table
shows on how many answers the two agree. Tried with KernelBench as of commit 0d12226.

Run: python benchmarks/judge.py [--count 200] [--workers 1,4] [--kernelbench PATH]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from common import machine_line, make_parser, median, p95, print_table, write_json
from judge_answers import PROBLEM, Answer, make_answers
from judge_peers import Evaluator, Outcome

import jitload

_TIMEOUT_S = 180.0  # that of KernelBench's script


def judge_answers(answers: Sequence[Answer], problem: Path, workers: Sequence[int]) -> dict[int, list[jitload.Verdict]]:
    """Return the verdicts for each number of workers, each from a judge that finds no kernels in Triton's cache."""
    verdicts = {}
    for count in workers:
        os.environ["TRITON_CACHE_DIR"] = str(problem.with_name(f"triton_{count}"))
        started = time.perf_counter()
        with jitload.Judge(reference=problem, seconds=0.1, timeout=_TIMEOUT_S) as judge:
            first = judge.run(answers[0].text)
            print(f"until the first verdict: {time.perf_counter() - started:.2f} s ({first})")
            started = time.perf_counter()
            verdicts[count] = list(judge.map([answer.text for answer in answers], workers=count))
            elapsed = (time.perf_counter() - started) / len(answers)
            stages = dict(Counter(verdict.stage for verdict in verdicts[count]))
            print(f"{count} workers: {elapsed:.3f} s for each of {len(answers)} verdicts {stages}", flush=True)
    return verdicts


def evaluate_answers(answers: Sequence[Answer], options: argparse.Namespace) -> list[Outcome]:
    """Return KernelBench's outcomes for as many answers as the time allows."""
    started, outcomes = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as builds, Evaluator(options.kernelbench, Path(builds)) as evaluator:
        os.environ["TRITON_CACHE_DIR"] = f"{builds}/triton"
        for number, answer in enumerate(answers):
            if time.perf_counter() - started > options.limit:
                print(f"KernelBench: no time for the last {len(answers) - number} answers")
                break
            outcomes.append(evaluator.evaluate(answer, timeout_s=_TIMEOUT_S, is_alone=number < options.each))
    return outcomes


def timing_row(name: str, seconds: Sequence[float]) -> list[str]:
    """Return a row of the table of times."""
    if not seconds:
        return [name, "0", "", "", ""]
    return [name, str(len(seconds)), *(f"{f(seconds):.3f}" for f in (lambda s: sum(s) / len(s), median, p95))]


def print_comparison(
    answers: Sequence[Answer], verdicts: Sequence[jitload.Verdict], outcomes: Sequence[Outcome]
) -> None:
    """Print the times per answer, and on what the judge and KernelBench agree."""
    rows = []
    for is_extension, label in ((False, ""), (True, ", extensions")):
        numbers = [n for n, answer in enumerate(answers) if (answer.kind == "extension") is is_extension]
        rows.append(timing_row(f"jitload.Judge{label}", [verdicts[n].seconds for n in numbers]))
        for is_alone, how in ((True, "a process each"), (False, "one process")):
            seconds = [outcomes[n].seconds for n in numbers if n < len(outcomes) and outcomes[n].is_alone is is_alone]
            rows.append(timing_row(f"KernelBench, {how}{label}", seconds))
    print()
    print_table(("seconds per answer", "answers", "mean", "median", "p95"), [row for row in rows if row[1] != "0"])
    pairs = Counter(
        (answer.kind, answer.defect, verdict.stage, outcome.state)
        for answer, verdict, outcome in zip(answers, verdicts, outcomes, strict=False)
    )
    print()
    print_table(("answers", "what is in them", "the judge", "KernelBench", "number"), [
        [kind, defect, stage, state, str(count)] for (kind, defect, stage, state), count in sorted(pairs.items())
    ])  # fmt: skip
    same = sum(v.ok == (o.state == "correct") for v, o in zip(verdicts, outcomes, strict=False))
    print(f"\nThe judge and KernelBench agree on {same} of {len(outcomes)} answers.")


def main() -> None:
    parser = make_parser(__doc__, peers=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=200, help="the number of answers (200)")
    parser.add_argument("--extensions", type=int, default=0, help="how many of them build a CUDA extension (0)")
    parser.add_argument("--workers", default="1,4", metavar="N,N", help="how many answers are judged at a time (1,4)")
    parser.add_argument("--kernelbench", type=Path, metavar="PATH", help="a checkout of KernelBench, which needs a GPU")
    parser.add_argument("--each", type=int, default=12, help="how many answers have a process of their own there (12)")
    parser.add_argument("--limit", type=float, default=330, help="how many seconds KernelBench may take in all (330)")
    options = parser.parse_args()
    workers = [int(text) for text in options.workers.split(",")]
    print(machine_line())
    answers = make_answers(options.count, extensions=options.extensions, has_gpu=torch.cuda.is_available())
    with tempfile.TemporaryDirectory() as directory:
        problem = Path(directory, "problem.py")
        problem.write_text(PROBLEM)
        verdicts = judge_answers(answers, problem, workers)
    outcomes = evaluate_answers(answers, options) if options.kernelbench else []
    if outcomes:
        print_comparison(answers, verdicts[workers[0]], outcomes)
    write_json(options.json, {
        "seconds": {str(count): [v.seconds for v in rows] for count, rows in verdicts.items()},
        "stages": [verdict.stage for verdict in verdicts[workers[0]]],
        "kernelbench": [outcome._asdict() for outcome in outcomes],
        "answers": [(answer.kind, answer.defect) for answer in answers],
    })  # fmt: skip


if __name__ == "__main__":
    main()
