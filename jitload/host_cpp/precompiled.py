"""Precompiled headers for hand-written C++: which one a source can use, where it is cached, and how it is made.

Half the time to compile a small wrapper goes into tvm-ffi's headers. Precompiled, these headers take an eighth of that
time and 70 MB in the cache. A separate process of low priority precompiles them, after the first build that could have
used the result. No build waits for this process, and each user has at most one such process running on a machine.

    <cache>/precompiled-<key>/<leaf>/prelude.h, prelude.h.gch

`prelude.h` includes the headers, and the `.gch` is their precompiled form. For sources with kernels, `prelude.h` is
the beginning of the C++ that nvcc makes of every source: the text of `cuda_runtime.h`.

g++ refuses a `.gch` of another compiler or with other macros, and then reads `prelude.h`. g++ does not notice changes
of the headers from which a `.gch` was made, so these headers are recorded in the cache entry. A damaged `.gch` may
make g++ do anything, so the digest of a `.gch` is computed while g++ uses the file, and the build is repeated without
the file if the digest is wrong.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

from jitload.building.files_read import read_depfile
from jitload.building.resources import free_memory
from jitload.cache.entry import Entry, find_entry, is_in_private_cache, read_manifest
from jitload.cache.key import CacheKey
from jitload.cache.store import Work, claim_entry
from jitload.cpptext.includes import opening_includes
from jitload.host_cpp.dryrun import Template, host_commands, read_opening, write_opening_source
from jitload.request.request import Unit
from jitload.settings import Settings, read_settings
from jitload.toolchain.cuda import Nvcc
from jitload.toolchain.fingerprints import compiler_identity
from jitload.toolchain.host import Compiler, run_tool
from jitload.toolchain.private_files import make_private_dir

PRELUDE = (
    "tvm/ffi/container/tensor.h",
    "tvm/ffi/dtype.h",
    "tvm/ffi/error.h",
    "tvm/ffi/extra/c_env_api.h",
    "tvm/ffi/function.h",
)
_HEADER = "prelude.h"
_LAUNCHER = "tvm/ffi/extra/cuda/cubin_launcher.h"
# Headers that mean the same whether they come before or after tvm-ffi's headers.
_INDEPENDENT = (
    r"tvm/ffi/[\w/]+\.h|dlpack/dlpack\.h|cuda(?:_runtime(?:_api)?|_fp16|_bf16|_fp8)?\.h|c?std\w+(?:\.h)?|c?math(?:\.h)?"
    r"|c?string(?:\.h)?|c(?:assert|ctype|errno|float|limits|time|inttypes)|algorithm|array|atomic|chrono|functional"
    r"|initializer_list|iostream|iterator|limits|map|memory|mutex|new|numeric|optional|ostream|random|set|sstream"
    r"|stdexcept|string_view|thread|tuple|type_traits|unordered_(?:map|set)|utility|variant|vector"
)
# Matches options that do not depend on a file or on the machine.
_FLAG = r"-O[0-3sgz]?|-Ofast|-g[0-3]?|-std=[\w+]+|-W[\w=+-]+|-w|-pipe|-pthread|-pedantic|-[fm](?!.*native)[\w=+.-]+"
_MACRO = re.compile(r"-[DU](?P<name>\w+)(?:=.*)?", re.DOTALL)
# Macros that the precompiled headers may use are part of the key. g++ itself compares the user's other macros.
_MACRO_OF_HEADERS = re.compile(r"_.*|NDEBUG|TVM_.*|CUDA.*|DLPACK.*|JITLOAD_.*")
# Some of the environment variables that only the linker reads. The images `nvidia/cuda:*-devel` set LIBRARY_PATH.
_LINKER_VARIABLES = ("LIBRARY_PATH=", "LPATH=", "LD_RUN_PATH=")
_UNSUPPORTED_FLAGS = ("-fplugin", "-fmodules", "-fprofile", "-fpch", "-fdump")
_BYTES_NEEDED = 1 << 30  # bytes to be free in memory and on disk; g++ needs 250 MB of memory, and the file has 70 MB
_PROGRAM = """\
import os, sys
os.nice(10)
job, *sys.path[:] = sys.argv[1:]
from jitload.host_cpp.precompiled import precompile
precompile(job)
"""
_RETRY_S = 120.0  # seconds until the process is started again, because it may have been killed
_WALL_S = 900  # seconds; the limit for the process, which usually needs 4 s. A later build starts a new one.
_LOCK_TIMEOUT_S = 60.0  # seconds; how long to wait for another process that makes a header
_log = logging.getLogger(__name__)
_retry_at: dict[str, float] = {}  # cache and key -> when to try again, on the monotonic clock


class HeaderSpec(NamedTuple):
    """A precompiled header that a source could use. The header need not exist yet.

    Attributes:
        includes: The headers to precompile, in order.
        command: The compiler and its options.
        key: The key of the cache entry.
        nvcc_commands: The commands of nvcc that make the text of the header from the `#include` lines.
    """

    includes: tuple[str, ...]
    command: tuple[str, ...]
    key: CacheKey
    nvcc_commands: tuple[tuple[str, ...], ...] = ()


class PrecompiledHeader(NamedTuple):
    """A precompiled header in the cache.

    Attributes:
        entry: The cache entry.
        digest: The SHA-256 of the `.gch`.
    """

    entry: Entry
    digest: str

    @property
    def path(self) -> Path:
        """The path of `prelude.h`, the header as text. The `.gch` is in the same directory."""
        return self.entry.product

    @property
    def names(self) -> frozenset[str]:
        """The names of the included headers, and of their directories below `include`.

        g++ searches a user's include directory first, where a file or directory of the same name may hide a header.
        """
        paths = (file.path.rpartition("/include/")[2] for file in self.entry.dependencies)
        return frozenset(part for path in paths for part in path.split("/") if part)

    def is_intact(self) -> bool:
        """Return whether the `.gch` is unchanged since it was made."""
        with (
            suppress(OSError, ValueError),
            self.path.with_name(f"{_HEADER}.gch").open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return hashlib.sha256(data).hexdigest() == self.digest
        return False


# ---- which header a unit can use ---------------------------------------------------------------------------------


def header_spec(
    unit: Unit,
    flags: Sequence[str],
    *,
    compiler: Compiler,
    fixed_flags: tuple[Sequence[str], Sequence[str]],
    cache_dir: Path,
) -> HeaderSpec | None:
    """Return the precompiled header that a source could use, or None. Only g++ uses precompiled headers.

    `flags` are the user's options. `fixed_flags` are jitload's options before and after the user's options. The user's
    include directories are not in `fixed_flags`.
    """
    includes, user_flags = precompiled_includes(unit), keyed_flags(flags)
    identity = compiler_identity(compiler, cache_dir)
    if not includes or user_flags is None or "gcc version" not in identity:
        return None
    command = (*compiler.command, *fixed_flags[0], *user_flags, *fixed_flags[1])
    parts = (("kind", "precompiled header"), ("compiler", identity), ("command", command), ("includes", includes))
    return HeaderSpec(includes=includes, command=command, key=CacheKey.of("precompiled", parts))


def nvcc_header_spec(
    template: Template, includes: Sequence[str], *, nvcc: Nvcc, compiler: Compiler, cache_dir: Path
) -> HeaderSpec | None:
    """Return the precompiled header for the C++ that nvcc makes of a source, or None. Only g++ uses it.

    It contains `cuda_runtime.h`, which nvcc includes in front of every source, and `includes`.
    """
    preprocess, split = host_commands(template)
    program, *words = template[-1].words
    options = [word for word in words if re.match(r"-(?!I|idirafter|isystem$|[cox]$)", word)]
    keyed, identity = keyed_flags(options), compiler_identity(compiler, cache_dir)
    if keyed is None or (program,) != compiler.command or "gcc version" not in identity:
        return None
    command = (program, *keyed, *(f"-I{path}" for path in nvcc.include_dirs))
    macros = keyed_flags([f"-D{word}" for before, word in pairwise(preprocess.words) if before == "-D"])
    parts = (("kind", "precompiled header"), ("compiler", identity), ("cudafe++", nvcc.identity), ("command", command))
    key = CacheKey.of("precompiled", (*parts, ("macros", macros or ()), ("includes", tuple(includes))))
    commands = (preprocess.words, split.words)
    return HeaderSpec(includes=tuple(includes), command=command, key=key, nvcc_commands=commands)


def precompiled_includes(unit: Unit) -> tuple[str, ...]:
    """Return the headers to precompile for a source, or an empty tuple if a precompiled header would not help.

    The headers are tvm-ffi's convenience headers, which jitload puts in front of inline text. For a file of the user,
    they are precompiled only if the file itself includes the first of them at its beginning.

    tvm-ffi's `cubin_launcher.h` is added if the source includes it at the beginning, where no code can change the
    header's meaning.
    """
    if unit.file.endswith(".c") or unit.is_mixed or not unit.pieces:
        return ()
    opening = independent_includes(unit.pieces[0][1])
    if unit.is_file and PRELUDE[0] not in opening:
        return ()
    return (*PRELUDE, _LAUNCHER) if _LAUNCHER in opening else PRELUDE


def independent_includes(text: str) -> list[str]:
    """Return the headers that a text includes at its beginning.

    Stop before the first header whose meaning may depend on earlier headers.
    """
    return list(takewhile(re.compile(_INDEPENDENT).fullmatch, opening_includes(text)))


def keyed_flags(flags: Sequence[str]) -> tuple[str, ...] | None:
    """Return the options on which a precompiled header depends, or None if an option prevents its use."""
    keyed = []
    for flag in flags:
        macro = _MACRO.fullmatch(flag)
        if macro and not _MACRO_OF_HEADERS.fullmatch(macro["name"]):
            continue
        if flag.startswith(_UNSUPPORTED_FLAGS) or not (macro or re.fullmatch(_FLAG, flag)):
            return None
        keyed.append(flag)
    return tuple(keyed)


# ---- find a header in the cache ----------------------------------------------------------------------------------


def find_precompiled(
    spec: HeaderSpec, cache_dir: Path, settings: Settings, include_dirs: Sequence[str] = ()
) -> PrecompiledHeader | None:
    """Return a precompiled header from the cache, or None if there is none that can be used.

    The included headers must be unchanged, and nothing in the include directories may hide them.
    """
    if not _is_usable(spec.key, cache_dir, settings):
        return None
    entry = find_entry(cache_dir, spec.key, settings)
    if entry is None:
        return None
    with suppress(OSError, LookupError, TypeError, ValueError):
        size, digest = read_manifest(entry.dir)["files"][f"{_HEADER}.gch"]
        if (entry.dir / f"{_HEADER}.gch").stat().st_size == size:
            header = PrecompiledHeader(entry, digest)
            return None if _hides_header(include_dirs, header.names) else header
    remove_damaged(entry)
    return None


def _is_usable(key: CacheKey, cache_dir: Path, settings: Settings) -> bool:
    """Return whether precompiled headers are enabled and the header with this key has not failed before.

    Except for variables of the linker, every environment variable that a compiler reads disables them.
    """
    if not settings.precompiles or settings.mode != "auto":
        return False
    if any(not variable.startswith(_LINKER_VARIABLES) for variable in settings.environment):
        return False
    return not failure_path(key, cache_dir).exists()


def _hides_header(include_dirs: Sequence[str], names: frozenset[str]) -> bool:
    """Return whether one of the directories contains a file or a directory with one of the names."""
    for directory in include_dirs:
        with suppress(OSError):
            if not names.isdisjoint(os.listdir(directory)):
                return True
    return False


def remove_damaged(entry: Entry) -> None:
    """Remove a damaged precompiled header; the next build starts to make it again."""
    _log.warning("the precompiled header %s is damaged; it is removed, and made again later", entry.product)
    shutil.rmtree(entry.dir, ignore_errors=True)


def record_failure(key: CacheKey, cache_dir: Path, reason: str) -> None:
    """Record that a precompiled header does not work on this machine, so that it is neither made nor used again."""
    with suppress(OSError):
        path = failure_path(key, cache_dir)
        make_private_dir(path.parent)
        path.write_text(reason + "\n", errors="replace")


def failure_path(key: CacheKey, cache_dir: Path) -> Path:
    """Return the path of the file that exists if a precompiled header does not work on this machine."""
    return cache_dir / ".tools" / f"{key.digest[:32]}.refused"


# ---- start the process that makes a header -----------------------------------------------------------------------


def start_precompiling(spec: HeaderSpec, cache_dir: Path, settings: Settings) -> None:
    """Start a background process that makes a precompiled header, if there is enough memory and disk.

    The process outlives this one. A program that ends after one build is therefore faster the next time.
    """
    retry_key = f"{cache_dir}\0{spec.key.digest}"
    is_too_early = time.monotonic() < _retry_at.get(retry_key, 0.0)
    if is_too_early or not _is_usable(spec.key, cache_dir, settings) or not sys.executable:
        return
    if is_in_private_cache(cache_dir):
        return  # it is removed when this process ends
    _retry_at[retry_key] = time.monotonic() + _RETRY_S
    if find_entry(cache_dir, spec.key, settings) or not _has_resources(cache_dir):
        return
    # The shell exits at once, so that the process is not a child of this one and leaves no zombie.
    command = ["/bin/sh", "-c", '"$@" &', "sh", *job_command(spec, cache_dir)]
    quiet = subprocess.DEVNULL
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            command, cwd="/", stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True, timeout=10, check=False
        )


def job_command(spec: HeaderSpec, cache_dir: Path) -> list[str]:
    """Return the command of the process that makes a precompiled header."""
    job = pickle.dumps((spec, cache_dir)).hex()
    return [sys.executable, "-c", _PROGRAM, job, str(Path(__file__).parents[2]), *sys.path]


def _has_resources(cache_dir: Path) -> bool:
    """Return whether the cache is writable and a gigabyte of disk and of memory is free."""
    try:
        disk = shutil.disk_usage(cache_dir).free
    except OSError:
        return False
    return os.access(cache_dir, os.W_OK) and disk >= _BYTES_NEEDED and free_memory() >= _BYTES_NEEDED


# ---- make a header, in a process of its own ----------------------------------------------------------------------


def precompile(job: str) -> None:
    """Make a precompiled header, as `job_command` says. Exit if another process holds the lock for too long.

    All precompiling processes of this user on a machine share the lock.
    """
    from filelock import FileLock

    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, lambda *_: sys.exit(1))  # exit normally, which removes the work directory
    signal.alarm(_WALL_S)
    spec, cache_dir = pickle.loads(bytes.fromhex(job))  # noqa: S301  from the process that started this one
    lock = Path(tempfile.gettempdir()) / f"jitload-precompiling-{os.getuid()}"
    with FileLock(lock, timeout=_LOCK_TIMEOUT_S, mode=0o600):
        if _has_resources(cache_dir):
            with claim_entry(cache_dir, spec.key, read_settings()) as work:
                if work.entry is None and (problem := make_header(spec, work)):
                    record_failure(spec.key, cache_dir, problem)


def make_header(spec: HeaderSpec, work: Work) -> str:
    """Write a header, precompile it, and publish both. Return the reason why the result cannot be used, or ""."""
    header, text = work.dir / _HEADER, "".join(f"#include <{name}>\n" for name in spec.includes)
    header.write_text(text)
    (work.dir / "empty.cc").write_text("")
    if spec.nvcc_commands:
        write_opening_source(text, work.dir)
        for step in spec.nvcc_commands:
            if problem := _run(step, work.dir):
                return problem
        header.write_bytes(read_opening(spec.nvcc_commands[-1], work.dir))
    compilation = [*spec.command, "-MD", "-MF", "depfile", "-x", "c++-header", _HEADER, "-o", f"{_HEADER}.gch"]
    # If g++ cannot use the header, -Winvalid-pch makes it say so, in an error if the user's options include -Werror and
    # otherwise in a warning. `_run` checks for both.
    trial = [*spec.command, "-Winvalid-pch", "-include", f"./{_HEADER}", "-fsyntax-only", "empty.cc"]
    if problem := _run(compilation, work.dir) or _run(trial, work.dir):
        return problem
    paths = read_depfile((work.dir / "depfile").read_text(errors="surrogateescape"))
    work.publish(_HEADER, tuple(sorted({path for path in paths if path.is_absolute()})))
    return ""


def _run(command: Sequence[str], work_dir: Path) -> str:
    """Run a compiler. If it fails or writes about the precompiled header, return the command and its messages."""
    result = run_tool(command, "the C++ compiler", directory=work_dir, timeout_s=None)
    is_good = result.returncode == 0 and ".gch" not in result.stderr
    return "" if is_good else f"{' '.join(command)}\n{result.stderr}"
