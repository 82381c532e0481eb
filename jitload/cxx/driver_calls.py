"""C++ that calls the CUDA driver by name: text that finds those functions when the library is loaded.

Linking libcuda would tie the library to a machine that has a driver, and the link to one that has its `libcuda.so`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_CALL = re.compile(r"cu[A-Z]\w*")
_VERSION = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")

_TEXT = """\
/* The driver's functions that this library calls. Where there is no driver, each says so. */
#include <dlfcn.h>
#include <stddef.h>

enum {{ COUNT = {count} }};
__attribute__((visibility("hidden"))) void* jitload_driver_calls[COUNT];
static const char* const names[COUNT] = {{
{names}}};

static int no_driver(void) {{ return 100; }}   /* CUDA_ERROR_NO_DEVICE */
static int no_function(void) {{ return 801; }} /* CUDA_ERROR_NOT_SUPPORTED: the driver is older */

/* Before the constructors of the library's own objects. */
__attribute__((constructor(101))) static void find_driver(void) {{
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  for (size_t i = 0; i < COUNT; ++i) {{
    void* found = library != NULL ? dlsym(library, names[i]) : NULL;
    jitload_driver_calls[i] = found != NULL ? found : library != NULL ? (void*)no_function : (void*)no_driver;
  }}
}}

#define FUNCTION_(name, jump) \\
  __asm__(".text\\n.globl " #name "\\n.hidden " #name "\\n.type " #name ", %function\\n" #name ":\\n" jump)
#if defined(__x86_64__)
#define CALL(name, at) FUNCTION_(name, "jmp *jitload_driver_calls+" #at "(%rip)\\n")
#elif defined(__aarch64__)
#define CALL(name, at)                                    \\
  FUNCTION_(name, "adrp x16, jitload_driver_calls+" #at "\\n" \\
                  "ldr x16, [x16, #:lo12:jitload_driver_calls+" #at "]\\nbr x16\\n")
#else
#error "calls of the driver are known for x86-64 and AArch64"
#endif

{calls}"""


def find_driver_calls(symbols: Iterable[str], include_dirs: Sequence[Path]) -> tuple[str, ...]:
    """Return the undefined symbols that are functions of the driver, as CUDA's own header has them."""
    wanted = sorted(filter(_CALL.fullmatch, symbols))
    header = next((path for path in (root / "cuda.h" for root in include_dirs) if path.is_file()), None)
    if not wanted or header is None:
        return ()
    known = set(re.findall(r"\bCUDAAPI\s+(\w+)\s*\(", header.read_text(encoding="utf-8", errors="replace")))
    return tuple(name for name in wanted if _VERSION.sub("", name) in known or name in known)


def driver_calls_text(functions: Sequence[str]) -> str:
    """Return the C text that defines functions of the driver."""
    return _TEXT.format(
        count=len(functions),
        names="".join(f'    "{name}",\n' for name in functions),
        calls="".join(f"CALL({name}, {8 * at});\n" for at, name in enumerate(functions)),
    )
