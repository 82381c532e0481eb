"""Chooses what to link hand-written C++ with: the user's options, a fast linker, and the CUDA libraries that it calls.

A library is linked with libcuda only if the user's options say so, because a library with libcuda can be built and
loaded only where a driver is installed. Otherwise, generated C code looks up the driver's functions when the library is
loaded.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from jitload.building.files_read import option_values
from jitload.errors import ToolchainError
from jitload.toolchain.cuda import CudaToolchain, Nvcc
from jitload.toolchain.fingerprints import compiler_identity, file_state, remembered
from jitload.toolchain.host import Compiler, first_file, run_tool
from jitload.toolchain.libraries import LIBRARIES, find_library, library_of, library_wheel
from jitload.words import Argument

_GOLD = "-fuse-ld=gold"
_GOLD_TRIAL = (_GOLD, "-x", "c++", os.devnull)
_OPTIONAL = {f"-l{library}" for library in ("cuda", "cudadevrt", *LIBRARIES)}
_COMPILE_ONLY = re.compile(r"-[DUWO](?!l,)|-std=|-I|-w$")  # options without a meaning for the linker
_DRIVER_FUNCTION = re.compile(r"cu[A-Z]\w*")
_VERSION_SUFFIX = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")

_DRIVER_CALLS = """\
/* The functions of the driver that this library calls. Without a driver, each returns an error. */
#include <dlfcn.h>
#include <stddef.h>

enum {{ COUNT = {count} }};
static __attribute__((used)) void* jitload_driver_calls[COUNT];
static const char* const names[COUNT] = {{
{names}}};

static int no_driver(void) {{ return 100; }}   /* CUDA_ERROR_NO_DEVICE */
static int no_function(void) {{ return 801; }} /* CUDA_ERROR_NOT_SUPPORTED: the driver is older */

/* Runs before the constructors of the library's own objects. */
__attribute__((constructor(101))) static void find_driver(void) {{
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  for (size_t i = 0; i < COUNT; ++i) {{
    void* function = library != NULL ? dlsym(library, names[i]) : NULL;
    void* replacement = library != NULL ? (void*)no_function : (void*)no_driver;
    jitload_driver_calls[i] = function != NULL ? function : replacement;
  }}
}}

/* The functions are weak, because a user may link several object files that have them. */
#define FUNCTION_(name, jump) \\
  __asm__(".text\\n.weak " #name "\\n.hidden " #name "\\n.type " #name ", %function\\n" #name ":\\n" jump)
#if defined(__x86_64__)
#define CALL(name, offset) FUNCTION_(name, "jmp *jitload_driver_calls+" #offset "(%rip)\\n")
#elif defined(__aarch64__)
#define CALL(name, offset)                                        \\
  FUNCTION_(name, "adrp x16, jitload_driver_calls+" #offset "\\n" \\
                  "ldr x16, [x16, #:lo12:jitload_driver_calls+" #offset "]\\nbr x16\\n")
#else
#error "calls of the driver are implemented for x86-64 and AArch64 only"
#endif

{calls}"""


# ---- options -----------------------------------------------------------------------------------------------------


def fast_linker(compiler: Compiler, flags: Sequence[str], cache_dir: Path) -> tuple[str, ...]:
    """Return the option that selects GNU gold.

    Return () if gold is missing or does not work with this compiler, or if the user's options may select a linker. Most
    of a link's time goes into reading the symbols of the C++ library. gold takes a third of GNU ld's time for this.

    jitload tries once for each compiler whether gold works, and keeps the answer in the cache.
    """
    is_plain = len(compiler.command) == 1 and all(map(_COMPILE_ONLY.match, flags))
    gold = shutil.which("ld.gold")
    if not (is_plain and platform.machine() == "x86_64" and gold):
        return ()
    words = (*_GOLD_TRIAL, *compiler.command, compiler_identity(compiler, cache_dir), file_state(gold))
    is_usable = remembered(words, cache_dir, lambda: str(_can_link(_GOLD_TRIAL, compiler)))
    return (_GOLD,) if is_usable == "True" else ()


def usable_link_flags(flags: Sequence[str], cuda: CudaToolchain | Nvcc | None, compiler: Compiler) -> tuple[str, ...]:
    """Return the user's link options without CUDA libraries that the linker cannot find.

    For example, `-lcuda`, `-lcudart` or `-lcublas` may be left out. `missing_libraries` and `missing_driver_calls`
    later find the functions that stay undefined. If nvcc makes the objects, the CUDA runtime library is added, because
    nvcc's objects always need it.
    """
    search = [f"-L{directory}" for directory in option_values("-L", flags)]
    usable = tuple(flag for flag in flags if flag not in _OPTIONAL or _can_link((*search, flag), compiler))
    cudart = find_library("cudart", cuda) if isinstance(cuda, Nvcc) else None
    if cudart is None:
        return usable
    library = () if any("cudart" in flag for flag in usable) else (str(cudart),)
    return (*usable, *library, f"-Wl,-rpath,{cudart.parent}")


def _can_link(options: Sequence[str], compiler: Compiler) -> bool:
    """Return whether the compiler can link an empty library with these options, which name at least one input."""
    command = [*compiler.command, "-shared", "-nostartfiles", *options, "-o", "/dev/null"]
    return run_tool(command, "the C++ compiler").returncode == 0


def linked_libraries(flags: Sequence[str]) -> Iterator[Path]:
    """Yield the library files that link options may refer to.

    These are the files that options name by path. For `-lfoo`, they are the paths in the `-L` directories at which the
    library may be.
    """
    dirs = list(option_values("-L", flags))
    for flag in flags:
        if flag.startswith("-l"):
            paths = (directory / f"lib{flag[2:]}{suffix}" for directory in dirs for suffix in (".so", ".a"))
            yield from (path for path in paths if path.is_absolute())
        elif flag.startswith("/") and Path(flag).is_file():
            yield Path(flag)


# ---- functions of the CUDA runtime and of CUDA's libraries -------------------------------------------------------


def missing_libraries(
    undefined: Collection[str], cuda: CudaToolchain | Nvcc | None, flags: Sequence[str], name: str
) -> tuple[str, ...]:
    """Return options that link the CUDA libraries of undefined functions.

    Libraries that `flags` name are left out. `name` is the module's name, for the message.

    Raises:
        ToolchainError: A library is not found, and no library in `flags` may replace it.
    """
    functions = {library: symbol for symbol in sorted(undefined, reverse=True) if (library := library_of(symbol))}
    options: list[str] = []
    for library, function in functions.items():
        is_runtime = library == "cudart"
        if any(
            f"lib{library}." in flag or flag == f"-l{library}" or (is_runtime and library in flag) for flag in flags
        ):
            continue
        path = find_library(library, cuda) if cuda else None
        if path:
            options += [str(path), f"-Wl,-rpath,{path.parent}"]
        elif is_runtime or (cuda and not any(flag.startswith(("-l", "/")) and "cudart" not in flag for flag in flags)):
            wheel = library_wheel(library, cuda.major if cuda else 13)
            raise ToolchainError(
                f"module {name!r} calls {function}, but lib{library} was not found. Install it with: "
                f"pip install {wheel}, or name one in ",
                *(Argument("extra_ldflags", python="extra_ldflags=[…]"), "."),
            )
    return tuple(options)


# ---- functions of the driver -------------------------------------------------------------------------------------


def missing_driver_calls(
    undefined: Collection[str], cuda: CudaToolchain | Nvcc | None, flags: Sequence[str]
) -> tuple[str, ...]:
    """Return the undefined symbols that are functions of the driver, or () if the user's options name libcuda."""
    if cuda is None or any("libcuda." in flag or flag == "-lcuda" for flag in flags):
        return ()
    return find_driver_calls(undefined, cuda.include_dirs)


def find_driver_calls(symbols: Iterable[str], include_dirs: Sequence[Path]) -> tuple[str, ...]:
    """Return the symbols that `cuda.h` declares as functions of the driver, in alphabetical order."""
    candidates = sorted(filter(_DRIVER_FUNCTION.fullmatch, symbols))
    header = first_file(root / "cuda.h" for root in include_dirs)
    if not candidates or header is None:
        return ()
    declared = set(re.findall(r"\bCUDAAPI\s+(\w+)\s*\(", header.read_text(encoding="utf-8", errors="replace")))
    return tuple(name for name in candidates if _VERSION_SUFFIX.sub("", name) in declared or name in declared)


def driver_calls_text(functions: Sequence[str]) -> str:
    """Return C text that defines functions of the driver. Their addresses are looked up when the library is loaded."""
    return _DRIVER_CALLS.format(
        count=len(functions),
        names="".join(f'    "{name}",\n' for name in functions),
        calls="".join(f"CALL({name}, {8 * index});\n" for index, name in enumerate(functions)),
    )
