"""A unit that no precompiled header serves yet in, an object with the functions of tvm-ffi's `error.h` out.

Every unit would have that code again, a seventh of a first build. Where another core is idle it is compiled there once,
beside the unit, and kept for the builds that follow, as it is in precompiled headers.

    <cache>/errors-<key>/<leaf>/errors.o
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from jitload.building.ninja import Step
from jitload.cache.entry import find_entry
from jitload.cache.key import CacheKey
from jitload.cache.store import Work, claim_entry
from jitload.cxx.headers import read_depfile
from jitload.cxx.precompiled import OBJECT, Wanted, can_afford, may_be_used
from jitload.cxx.spare import has_spare_core, only_one
from jitload.errors import JitLoadError
from jitload.settings import Settings

_PRAGMA, _SOURCE, _DEPFILE = "jitload_apart.h", "jitload_errors.cc", "jitload_errors.d"


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Functions that a build leaves to an object of their own.

    Attributes:
        recipe: The object's key.
        units: The files of the units that leave them to it.
        step: What makes it, or None where it was made before.
        product: Its bytes, behind a build that made it.
        headers: What they were made from.
    """

    recipe: CacheKey
    units: frozenset[str]
    step: Step | None = None
    product: bytes = b""
    headers: tuple[Path, ...] = ()

    def is_made(self, work_dir: Path) -> bool:
        """Tell whether the object was made: what failed then is the unit."""
        return (work_dir / OBJECT).is_file()

    def read(self, work_dir: Path) -> Apart:
        """Return it with what a build has made, to be kept."""
        names = read_depfile((work_dir / _DEPFILE).read_text(errors="surrogateescape")) if self.step else ()
        product = (work_dir / OBJECT).read_bytes() if self.step else b""
        return replace(self, product=product, headers=tuple(sorted({path for path in names if path.is_absolute()})))


# By this the compiler leaves the functions of a header to whoever implements them.
FLAGS = ("-include", _PRAGMA)


def interface_text(names: Sequence[str]) -> str:
    """Return C++ in front of a header, under all its names, that makes its functions somebody else's."""
    return "".join(f'#line 1 "{name}"\n#pragma interface\n' for name in names)


def errors_text(names: Sequence[str]) -> str:
    """Return the C++ that has those functions."""
    return f'#pragma implementation "{Path(names[0]).name}"\n{interface_text(names)}#include <tvm/ffi/error.h>\n'


def errors_recipe(recipe: CacheKey, names: Sequence[str]) -> CacheKey:
    """Return the object's key: all that decides a precompiled header but the headers in it."""
    parts = tuple(part for part in recipe.parts if part[0] not in ("kind", "includes"))
    return CacheKey.of("errors", (("kind", "errors"), ("text", errors_text(names)), *parts))


@contextmanager
def errors_apart(
    wanted: Mapping[str, Wanted], work: Work, settings: Settings, *, at_work: int
) -> Iterator[Apart | None]:
    """Prepare a build whose units leave those functions to an object, while it lasts, where that is quicker.

    Args:
        wanted: The precompiled header that would do, for the file of each unit.
        work: The build.
        settings: What the environment asks for.
        at_work: How many processors work for it anyhow.
    """
    one = next(iter(wanted.values()), None)
    if one is None or any(other != one for other in wanted.values()) or not one.apart or not one.is_all:
        yield None
        return
    apart = Apart(recipe=errors_recipe(one.recipe, one.apart), units=frozenset(wanted))
    if not may_be_used(apart.recipe, work.cache_dir, settings):
        yield None
    elif entry := find_entry(work.cache_dir, apart.recipe, settings):
        _write(work.dir, one.apart, (OBJECT, entry.product.read_bytes()))
        yield apart
    elif not has_spare_core(at_work) or not can_afford(work.cache_dir):
        yield None
    else:
        with only_one() as is_ours:
            yield _beside(apart, one, work.dir) if is_ours else None


def _beside(apart: Apart, wanted: Wanted, work_dir: Path) -> Apart:
    _write(work_dir, wanted.apart, (_SOURCE, errors_text(wanted.apart).encode()))
    command = (*wanted.command, "-MD", "-MF", _DEPFILE, "-c", _SOURCE, "-o", OBJECT)
    return replace(apart, step=Step(output=OBJECT, command=command, inputs=(_SOURCE,)))


def _write(work_dir: Path, names: Sequence[str], file: tuple[str, bytes]) -> None:
    (work_dir / _PRAGMA).write_text(interface_text(names))
    (work_dir / file[0]).write_bytes(file[1])


def keep(apart: Apart, cache_dir: Path, settings: Settings) -> None:
    """Put the object that a build has made into the cache."""
    with suppress(OSError, JitLoadError), claim_entry(cache_dir, apart.recipe, settings) as work:
        if work.entry is None and work.cache_dir == cache_dir:
            (work.dir / OBJECT).write_bytes(apart.product)
            work.publish(OBJECT, apart.headers)
