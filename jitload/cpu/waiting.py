"""Chooses g++'s options for kernels whose threads wait for each other, or run in step, without a barrier."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jitload.cpptext.lexer import strip_comments

TSAN_PARAMS = ("--param=tsan-instrument-func-entry-exit=0", "--param=tsan-distinguish-volatile=1")
# For loops that wait for another thread: each basic block may switch to another thread.
_PREEMPTIVE_FLAGS = ("-fsanitize-coverage=trace-pc", "-DJITLOAD_CPU_PREEMPT=1")
# For lanes that rely on running in step: compiled code calls a function of jitload_cpu.h before each access to memory.
_STEP_FLAGS = (
    "-fno-sanitize=kernel-address", "-fsanitize=thread", *TSAN_PARAMS, "-U__SANITIZE_THREAD__", "-DJITLOAD_CPU_STEPS=1",
)  # fmt: skip
_VOLATILE = re.compile(r"(?<!asm )(?<!__asm__ )\bvolatile\b")
# Words in the code of a thread that may read memory in a loop until another thread changes it.
_SPIN_WORDS = re.compile(rf"{_VOLATILE.pattern}|\batomic_ref\b|\batomic\s*<|\batomic_thread_fence\b")


def waiting_flags(texts: Sequence[str], sanitizers: Sequence[str]) -> tuple[str, ...]:
    """Return g++'s options for the waits in a source and its headers.

    Lanes of a warp may rely on running in step if they access `volatile` variables. With `sanitize="race"`, compiled
    code calls functions of the runtime, which let them run in step, too.
    """
    codes = [strip_comments(text) for text in texts]
    has_steps = any(map(_VOLATILE.search, codes))
    return (
        *(_PREEMPTIVE_FLAGS if any(map(_SPIN_WORDS.search, codes)) else ()),
        *(_STEP_FLAGS if has_steps and "race" not in sanitizers else ()),
        *(("-DJITLOAD_CPU_CHECKS=1",) if has_steps and "address" in sanitizers else ()),
    )
