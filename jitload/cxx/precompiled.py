"""Find and start precompiled headers for hand-written C++.

Half the time to compile a small wrapper goes into tvm-ffi's headers. Precompiled, they take an eighth of that time and
70 MB in the cache. A separate process (`precompiling`) makes them in the background, after the first build that could
have used them; no build waits for it.

    <cache>/precompiled-<key>/<leaf>/prelude.h, prelude.h.gch, precompiled.json

g++ refuses a `.gch` of another compiler or with other macros, and then reads `prelude.h`. It does not check the headers
from which a `.gch` was made, so these are recorded like those of an entry. A damaged `.gch` may do anything: its digest
is computed while the compiler uses it, and the build is repeated without it if the digest is wrong.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from jitload.cache.entry import Entry, find_entry
from jitload.cache.key import CacheKey
from jitload.cpptext.includes import opening_includes
from jitload.cxx.spare import free_memory
from jitload.files import make_private_dir
from jitload.request.request import Unit
from jitload.settings import Settings
from jitload.toolchain.host import Compiler
from jitload.toolchain.identity import compiler_identity

PRELUDE = (
    "tvm/ffi/container/tensor.h",
    "tvm/ffi/dtype.h",
    "tvm/ffi/error.h",
    "tvm/ffi/extra/c_env_api.h",
    "tvm/ffi/function.h",
)
HEADER = "prelude.h"
FACTS = "precompiled.json"

_LAUNCHER = "tvm/ffi/extra/cuda/cubin_launcher.h"
# Headers that mean the same before tvm-ffi's headers as after them.
_INDEPENDENT = (
    r"tvm/ffi/[\w/]+\.h|dlpack/dlpack\.h|cuda(?:_runtime(?:_api)?|_fp16|_bf16|_fp8)?\.h|c?std\w+(?:\.h)?|c?math(?:\.h)?"
    r"|c?string(?:\.h)?|c(?:assert|ctype|errno|float|limits|time|inttypes)|algorithm|array|atomic|chrono|functional"
    r"|initializer_list|iostream|iterator|limits|map|memory|mutex|new|numeric|optional|ostream|random|set|sstream"
    r"|stdexcept|string_view|thread|tuple|type_traits|unordered_(?:map|set)|utility|variant|vector"
)
# Options that depend on no file and no machine. The user's own macros need not be in the key: g++ compares them.
_FLAG = r"-O[0-3sgz]?|-Ofast|-g[0-3]?|-std=[\w+]+|-W[\w=+-]+|-w|-pipe|-pthread|-pedantic|-[fm](?!.*native)[\w=+.-]+"
_MACRO = re.compile(r"-[DU](?P<name>\w+)(?:=.*)?", re.DOTALL)
_MACRO_OF_HEADERS = re.compile(r"_.*|NDEBUG|TVM_.*|CUDA.*|DLPACK.*|JITLOAD_.*")
_NOT_KEYED = ("-fplugin", "-fmodules", "-fprofile", "-fpch", "-fdump")
_BYTES_NEEDED = 1 << 30  # of memory and of disk; g++ needs 250 MB and the file 70
_PROGRAM = """\
import json, os, sys
os.nice(10)
job = json.loads(sys.argv[1])
sys.path[:] = job["path"]
from jitload.cxx.precompiling import precompile
precompile(job)
"""
_log = logging.getLogger(__name__)
_RETRY_S = 120.0  # the process may have been killed
_retry_at: dict[str, float] = {}  # by cache and key, on the monotonic clock


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderSpec:
    """A precompiled header that a unit could use, whether it exists or not.

    Attributes:
        includes: The headers in it, in order.
        command: The compiler and its options.
        key: Its cache key.
    """

    includes: tuple[str, ...]
    command: tuple[str, ...]
    key: CacheKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Precompiled:
    """A precompiled header in the cache.

    Attributes:
        entry: Its cache entry.
        path: The header as text, `prelude.h`, beside which the `.gch` lies.
        digest: The SHA-256 of the `.gch`.
        names: The names of the headers in it and of their directories; a user's directory may hide one.
    """

    entry: Entry
    path: Path
    digest: str
    names: frozenset[str]

    def is_intact(self) -> bool:
        """Tell whether the `.gch` is unchanged since it was made."""
        return _digest(self.path.with_name(f"{HEADER}.gch")) == self.digest


def _digest(path: Path) -> str:
    with (
        suppress(OSError, ValueError),
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return hashlib.sha256(data).hexdigest()
    return ""


# ---- which header -------------------------------------------------------------------------------------------------


def header_spec(
    unit: Unit,
    flags: Sequence[str],
    *,
    compiler: Compiler,
    around: tuple[Sequence[str], Sequence[str]],
    cache_dir: Path,
) -> HeaderSpec | None:
    """Return the precompiled header that a unit could use, or None; only g++ uses any.

    Args:
        unit: The unit to compile.
        flags: The user's options.
        compiler: The compiler.
        around: The options before and after those, without the user's include directories.
        cache_dir: The cache, where the compiler's identity is recorded.
    """
    includes, kept = precompiled_includes(unit), keyed_flags(flags)
    identity = compiler_identity(compiler, cache_dir)
    if not includes or kept is None or "gcc version" not in identity:
        return None
    command = (*compiler.command, *around[0], *kept, *around[1])
    parts = (("kind", "precompiled"), ("compiler", identity), ("command", command), ("includes", includes))
    return HeaderSpec(includes=includes, command=command, key=CacheKey.of("precompiled", parts))


def precompiled_includes(unit: Unit) -> tuple[str, ...]:
    """Return the headers to precompile for a unit: the first that it includes, as far as they are worth it.

    jitload puts upstream's convenience headers in front of inline text. The launcher's header may follow directly if
    nothing that the text has before it can change its meaning.
    """
    if unit.file.endswith(".c") or unit.is_mixed or not unit.pieces:
        return ()
    opening = independent_includes(unit.pieces[0][1])
    if unit.is_file and PRELUDE[0] not in opening:
        return ()
    return (*PRELUDE, _LAUNCHER) if _LAUNCHER in opening else PRELUDE


def independent_includes(text: str) -> list[str]:
    """Return the headers with which a text begins, up to the first whose meaning may depend on those before it."""
    return list(takewhile(re.compile(_INDEPENDENT).fullmatch, opening_includes(text)))


def keyed_flags(flags: Sequence[str]) -> tuple[str, ...] | None:
    """Return the options on which a precompiled header depends, or None if one of them rules out any."""
    kept = []
    for flag in flags:
        macro = _MACRO.fullmatch(flag)
        if macro and not _MACRO_OF_HEADERS.fullmatch(macro["name"]):
            continue
        if flag.startswith(_NOT_KEYED) or not (macro or re.fullmatch(_FLAG, flag)):
            return None
        kept.append(flag)
    return tuple(kept)


# ---- look it up -----------------------------------------------------------------------------------------------


def find_precompiled(
    spec: HeaderSpec, cache_dir: Path, settings: Settings, include_dirs: Sequence[str] = ()
) -> Precompiled | None:
    """Return the precompiled header if it exists, its headers are unchanged and no directory of the user hides one."""
    if not may_be_used(spec.key, cache_dir, settings):
        return None
    entry = find_entry(cache_dir, spec.key, settings)
    if entry is None:
        return None
    facts = json.loads(entry.product.read_bytes())
    path = entry.dir / HEADER
    header = Precompiled(entry=entry, path=path, digest=facts["sha256"], names=frozenset(facts["names"]))
    with suppress(OSError):
        if path.with_name(f"{HEADER}.gch").stat().st_size == facts["size"]:
            return None if _hides_header(include_dirs, header.names) else header
    remove_damaged(header)
    return None


def may_be_used(key: CacheKey, cache_dir: Path, settings: Settings) -> bool:
    """Tell whether precompiled headers are enabled and this one has not failed before."""
    if not settings.precompiles or settings.mode != "auto" or settings.environment:
        return False
    return not refusal_path(key, cache_dir).exists()


def _hides_header(include_dirs: Sequence[str], names: frozenset[str]) -> bool:
    """Tell whether a directory has a file or directory with the name of a header or of a directory of headers."""
    for directory in include_dirs:
        with suppress(OSError):
            if not names.isdisjoint(os.listdir(directory)):
                return True
    return False


def remove_damaged(header: Precompiled) -> None:
    """Remove a damaged precompiled header; the next build starts to make it again."""
    _log.warning("the precompiled header %s is damaged; it is removed, and made again later", header.path)
    shutil.rmtree(header.entry.dir, ignore_errors=True)


def refuse(key: CacheKey, cache_dir: Path, reason: str) -> None:
    """Record that a precompiled header does not work on this machine, so that it is neither made nor used again."""
    with suppress(OSError):
        path = refusal_path(key, cache_dir)
        make_private_dir(path.parent)
        path.write_text(reason + "\n", errors="replace")


def refusal_path(key: CacheKey, cache_dir: Path) -> Path:
    """Return the file that records that a precompiled header does not work on this machine."""
    return cache_dir / ".tools" / f"{key.digest[:32]}.refused"


# ---- make it ---------------------------------------------------------------------------------------------------


def start_precompiling(spec: HeaderSpec, cache_dir: Path, settings: Settings) -> None:
    """Start a background process that makes a precompiled header, if there is enough memory and disk.

    The process outlives this one, so that a program that builds once and ends is faster the next time.
    """
    retry_key = f"{cache_dir}\0{spec.key.digest}"
    if (
        time.monotonic() < _retry_at.get(retry_key, 0.0)
        or not may_be_used(spec.key, cache_dir, settings)
        or not sys.executable
    ):
        return
    if cache_dir.parent == Path(tempfile.gettempdir()) and cache_dir.name.startswith("jitload-"):
        return  # a private directory, removed when this process ends
    _retry_at[retry_key] = time.monotonic() + _RETRY_S
    if find_entry(cache_dir, spec.key, settings) or not can_afford(cache_dir):
        return
    # The shell exits at once, so that the process is not a child of this one and leaves no zombie.
    command = ["/bin/sh", "-c", '"$@" &', "sh", *job_command(spec, cache_dir)]
    quiet = subprocess.DEVNULL
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            command, cwd="/", stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True, timeout=10, check=False
        )


def job_command(spec: HeaderSpec, cache_dir: Path) -> list[str]:
    """Return the command that makes a precompiled header."""
    job = {
        "path": [str(Path(__file__).parents[2]), *sys.path],
        "includes": spec.includes,
        "command": spec.command,
        "name": spec.key.name,
        "parts": spec.key.parts,
        "cache_dir": str(cache_dir),
    }
    return [sys.executable, "-c", _PROGRAM, json.dumps(job)]


def can_afford(cache_dir: Path) -> bool:
    """Tell whether the cache is writable and a gigabyte of disk and of memory is free."""
    try:
        disk = shutil.disk_usage(cache_dir).free
    except OSError:
        return False
    return os.access(cache_dir, os.W_OK) and disk >= _BYTES_NEEDED and free_memory() >= _BYTES_NEEDED
