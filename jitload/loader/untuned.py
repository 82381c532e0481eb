"""Logs keys that were not tuned."""

from __future__ import annotations

import ctypes
import functools
import logging
from typing import Any

HOW = ("first", "tuned", "nearest")  # in the order of the constants in runtime/core/choice.h
_log = logging.getLogger(__name__)


@functools.lru_cache(maxsize=1)
def untuned_reporter() -> Any:
    """Return a C function that logs once that a key was not tuned."""
    signature = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int32)
    return signature(_report)


@functools.lru_cache(maxsize=4096)
def _report(name: bytes, key: bytes, gpu: bytes, how: int) -> None:
    choice = "the variant of the nearest key" if HOW[how] == "nearest" else "the first variant"
    place = f"the key ({key.decode()}) was not tuned" if gpu else "no key was tuned on this GPU"
    _log.info("%s(): %s, so calls launch %s", name.decode(), place, choice)
