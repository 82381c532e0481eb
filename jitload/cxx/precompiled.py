"""A unit of C++ and its flags in, the precompiled header that it may begin with out, if there is one by now.

tvm-ffi's headers are half of what a small wrapper takes to compile. Precompiled they take an eighth, and 70 MB in the
cache. They are made in the background, after the first build that could have used them, by a process of its own
(`precompiling`): no build waits for that.

    <cache>/precompiled-<key>/<leaf>/prelude.h, prelude.h.gch, precompiled.json

g++ refuses a `.gch` of another compiler or with other macros, and then reads `prelude.h`. It does not look at the
headers behind one, so that these are recorded as an entry's are; and a `.gch` that is damaged may do anything, so that
its digest is taken while the compiler works with it, and the build done again without it where it is not the right one.

What tvm-ffi's `error.h` defines is code that every unit would have again, a quarter of what is left to do. In the
precompiled header it is somebody else's (`#pragma interface`), and in an object beside it once, for the link.
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
from pathlib import Path

from jitload.cache.entry import Entry, find_entry
from jitload.cache.recipe import Recipe
from jitload.cxx.spare import free_memory
from jitload.request.request import Unit
from jitload.settings import Settings, make_private
from jitload.toolchain.host import Compiler, tvm_ffi_include_dirs
from jitload.toolchain.identity import compiler_identity

PRELUDE = (
    "tvm/ffi/container/tensor.h",
    "tvm/ffi/dtype.h",
    "tvm/ffi/error.h",
    "tvm/ffi/extra/c_env_api.h",
    "tvm/ffi/function.h",
)
HEADER = "prelude.h"
OBJECT = "errors.o"
FACTS = "precompiled.json"

_LAUNCHER = "tvm/ffi/extra/cuda/cubin_launcher.h"
# Headers that mean the same before tvm-ffi's as after them. Compiled at the first use: most texts need none of it.
_INDEPENDENT = (
    r"tvm/ffi/[\w/]+\.h|dlpack/dlpack\.h|cuda(?:_runtime(?:_api)?|_fp16|_bf16|_fp8)?\.h|c?std\w+(?:\.h)?|c?math(?:\.h)?"
    r"|c?string(?:\.h)?|c(?:assert|ctype|errno|float|limits|time|inttypes)|algorithm|array|atomic|chrono|functional"
    r"|initializer_list|iostream|iterator|limits|map|memory|mutex|new|numeric|optional|ostream|random|set|sstream"
    r"|stdexcept|string_view|thread|tuple|type_traits|unordered_(?:map|set)|utility|variant|vector"
)
_BLANK = re.compile(r"\s+|//(?:[^\\\n]|\\.|\\\n)*|/\*.*?\*/", re.DOTALL)
_INCLUDE = re.compile(r"""#[ \t]*include[ \t]*(<[^>\n]+>|"[^"\n]+")[ \t]*(?=\n|//(?!.*\\$)|\Z)""")
# Options that name no file and no machine. A macro of the user's own need not be in the key: g++ looks at those itself.
_FLAG = r"-O[0-3sgz]?|-Ofast|-g[0-3]?|-std=[\w+]+|-W[\w=+-]+|-w|-pipe|-pthread|-pedantic|-[fm](?!.*native)[\w=+.-]+"
_MACRO = re.compile(r"-[DU](?P<name>\w+)(?:=.*)?", re.DOTALL)
_MACRO_OF_HEADERS = re.compile(r"_.*|NDEBUG|TVM_.*|CUDA.*|DLPACK.*|JITLOAD_.*")
_NOT_KEYED = ("-fplugin", "-fmodules", "-fprofile", "-fpch", "-fdump")
_BYTES_NEEDED = 1 << 30  # of memory and of disk; the compiler takes a quarter of it, the file a fourteenth
_PROGRAM = """\
import json, os, sys
os.nice(10)
job = json.loads(sys.argv[1])
sys.path[:] = job["path"]
from jitload.cxx.precompiling import precompile
precompile(job)
"""
_log = logging.getLogger(__name__)
_started: dict[str, float] = {}  # when; a process may be killed, and is given another chance later
_AGAIN_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A precompiled header that would do.

    Attributes:
        includes: What is in it, in order.
        command: The compiler and its options.
        recipe: Its key.
        apart: The header whose functions are in an object beside it, under the names that a compiler may have for it.
        is_all: Whether all of the user's options are in the command.
    """

    includes: tuple[str, ...]
    command: tuple[str, ...]
    recipe: Recipe
    apart: tuple[str, ...] = ()
    is_all: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Precompiled:
    """A precompiled header in the cache: the header that it stands for, and what is known of it."""

    entry: Entry
    header: Path
    digest: str
    names: frozenset[str]
    object_digest: str = ""  # of the object beside it, where there is one

    def copy_object(self, path: Path) -> bool:
        """Put the object that belongs to it where a build links it from, and tell whether that could be done."""
        try:
            if self.object_digest:
                shutil.copyfile(self.header.with_name(OBJECT), path)
        except OSError:
            return False
        return True

    def is_whole(self) -> bool:
        """Tell whether the files are those that were made."""
        names = {f"{HEADER}.gch": self.digest, **({OBJECT: self.object_digest} if self.object_digest else {})}
        return all(_digest(self.header.with_name(name)) == digest for name, digest in names.items())


def _digest(path: Path) -> str:
    with (
        suppress(OSError, ValueError),
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return hashlib.sha256(data).hexdigest()
    return ""


# ---- which one -------------------------------------------------------------------------------------------------


def wanted_header(
    unit: Unit,
    flags: Sequence[str],
    *,
    compiler: Compiler,
    around: tuple[Sequence[str], Sequence[str]],
    cache_dir: Path,
) -> Wanted | None:
    """Return the precompiled header that would do for a unit, or None where there is none: for g++ alone.

    Args:
        unit: What is compiled.
        flags: The user's options.
        compiler: With what.
        around: The options before and behind those; the user's include directories are not among them.
        cache_dir: Where the compiler's identity is remembered.
    """
    includes, kept = wanted_includes(unit), keyed_flags(flags)
    identity = compiler_identity(compiler, cache_dir)
    if not includes or kept is None or "gcc version" not in identity:
        return None
    command = (*compiler.command, *around[0], *kept, *around[1])
    apart = _headers_apart()
    parts = (
        ("kind", "precompiled"),
        ("compiler", identity),
        ("command", command),
        ("includes", includes),
        ("apart", apart),
    )
    recipe, is_all = Recipe(name="precompiled", parts=parts), kept == tuple(flags)
    return Wanted(includes=includes, command=command, recipe=recipe, apart=apart, is_all=is_all)


def _headers_apart() -> tuple[str, ...]:
    """Return tvm-ffi's `error.h` as it is given to g++, and as g++ may call it where that is shorter."""
    paths = (str(home / "tvm/ffi/error.h") for home in tvm_ffi_include_dirs())
    given = next((path for path in paths if os.path.exists(path)), "")
    names = tuple(dict.fromkeys((given, os.path.realpath(given)))) if given else ()
    return names if all(name.isprintable() and not set('"\\') & set(name) for name in names) else ()


def wanted_includes(unit: Unit) -> tuple[str, ...]:
    """Return what a unit begins with of that which is worth precompiling: nothing that it would not have read first.

    Inline text has upstream's convenience headers in front. The launcher's may come directly behind them where nothing
    that the text says before could change what it means.
    """
    if unit.file.endswith(".c") or unit.is_mixed or not unit.pieces:
        return ()
    opening = opening_includes(unit.pieces[0][1])
    if unit.is_file and PRELUDE[0] not in opening:
        return ()
    return (*PRELUDE, _LAUNCHER) if _LAUNCHER in opening else PRELUDE


def opening_includes(text: str) -> list[str]:
    """Return the headers with which a text begins, up to the first other thing or a header that may be anybody's."""
    found: list[str] = []
    at = 0
    while True:
        while blank := _BLANK.match(text, at):
            at = blank.end()
        include = _INCLUDE.match(text, at)
        if not include or not include[1].startswith("<") or not re.fullmatch(_INDEPENDENT, include[1][1:-1]):
            break
        found.append(include[1][1:-1])
        at = include.end()
    return found


def keyed_flags(flags: Sequence[str]) -> tuple[str, ...] | None:
    """Return the options on which a precompiled header depends, or None where there should be none."""
    kept = []
    for flag in flags:
        macro = _MACRO.fullmatch(flag)
        if macro and not _MACRO_OF_HEADERS.fullmatch(macro["name"]):
            continue
        if flag.startswith(_NOT_KEYED) or not (macro or re.fullmatch(_FLAG, flag)):
            return None
        kept.append(flag)
    return tuple(kept)


# ---- is it there -----------------------------------------------------------------------------------------------


def find_precompiled(
    wanted: Wanted, cache_dir: Path, settings: Settings, include_dirs: Sequence[str] = ()
) -> Precompiled | None:
    """Return the precompiled header, if it is made, its headers are as they were, and no user's directory hides one."""
    if not may_be_used(wanted.recipe, cache_dir, settings):
        return None
    entry = find_entry(cache_dir, wanted.recipe, settings)
    if entry is None:
        return None
    facts = json.loads(entry.product.read_bytes())
    header = entry.dir / HEADER
    found = Precompiled(
        entry=entry,
        header=header,
        digest=facts["sha256"],
        names=frozenset(facts["names"]),
        object_digest=facts["object_sha256"],
    )
    with suppress(OSError):
        if header.with_name(f"{HEADER}.gch").stat().st_size == facts["size"]:
            return None if _hides_one(include_dirs, found.names) else found
    set_aside(found)
    return None


def may_be_used(recipe: Recipe, cache_dir: Path, settings: Settings) -> bool:
    """Tell whether what saves time is wanted here, and did not fail before."""
    if not settings.precompiles or settings.mode != "auto" or settings.environment:
        return False
    return not refusal_path(recipe, cache_dir).exists()


def _hides_one(include_dirs: Sequence[str], names: frozenset[str]) -> bool:
    """Tell whether a directory has anything of the name of a header, or of a directory of headers."""
    for directory in include_dirs:
        with suppress(OSError):
            if not names.isdisjoint(os.listdir(directory)):
                return True
    return False


def set_aside(found: Precompiled) -> None:
    """Remove a precompiled header that is damaged; the next build has it made again."""
    _log.warning("the precompiled header %s is damaged; it is removed, and made again later", found.header)
    shutil.rmtree(found.entry.dir, ignore_errors=True)


def refuse(recipe: Recipe, cache_dir: Path, reason: str) -> None:
    """Remember that this one does not work here, so that nobody makes or uses it again."""
    with suppress(OSError):
        path = refusal_path(recipe, cache_dir)
        make_private(path.parent)
        path.write_text(reason + "\n", errors="replace")


def refusal_path(recipe: Recipe, cache_dir: Path) -> Path:
    """Return the file that says that a precompiled header does not work here."""
    return cache_dir / ".tools" / f"{recipe.key[:32]}.refused"


# ---- make it ---------------------------------------------------------------------------------------------------


def start_precompiling(wanted: Wanted, cache_dir: Path, settings: Settings) -> None:
    """Have a precompiled header made by a process that nobody waits for, if it can be afforded.

    That process outlives this one, so that a program that builds once and ends profits the next time.
    """
    key = f"{cache_dir}\0{wanted.recipe.key}"
    if (
        time.monotonic() < _started.get(key, 0.0)
        or not may_be_used(wanted.recipe, cache_dir, settings)
        or not sys.executable
    ):
        return
    if cache_dir.parent == Path(tempfile.gettempdir()) and cache_dir.name.startswith("jitload-"):
        return  # a private one, which ends with this process
    _started[key] = time.monotonic() + _AGAIN_S
    if find_entry(cache_dir, wanted.recipe, settings) or not can_afford(cache_dir):
        return
    # By a shell that ends at once: the process is nobody's child, and leaves nothing to be waited for.
    command = ["/bin/sh", "-c", '"$@" &', "sh", *job_command(wanted, cache_dir)]
    quiet = subprocess.DEVNULL
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            command, cwd="/", stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True, timeout=10, check=False
        )


def job_command(wanted: Wanted, cache_dir: Path) -> list[str]:
    """Return the command that makes a precompiled header."""
    job = {
        "path": [str(Path(__file__).parents[2]), *sys.path],
        "includes": wanted.includes,
        "apart": wanted.apart,
        "command": wanted.command,
        "name": wanted.recipe.name,
        "parts": wanted.recipe.parts,
        "cache_dir": str(cache_dir),
    }
    return [sys.executable, "-c", _PROGRAM, json.dumps(job)]


def can_afford(cache_dir: Path) -> bool:
    """Tell whether the cache can be written and there is a gigabyte of disk and of memory to spare."""
    try:
        disk = shutil.disk_usage(cache_dir).free
    except OSError:
        return False
    return os.access(cache_dir, os.W_OK) and disk >= _BYTES_NEEDED and free_memory() >= _BYTES_NEEDED
