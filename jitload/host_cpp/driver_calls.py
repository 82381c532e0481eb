"""Define the functions of the CUDA driver that hand-written C++ calls, so that it need not be linked with libcuda.

A library linked with libcuda could be built and loaded only where a driver is installed. Instead, C text generated here
looks the functions up when the library is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_CALL = re.compile(r"cu[A-Z]\w*")
_VERSION = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")

_TEXT = """\
/* The functions of the driver that this library calls. Without a driver, each returns an error. */
#include <dlfcn.h>
#include <stddef.h>

enum {{ COUNT = {count} }};
__attribute__((visibility("hidden"))) void* jitload_driver_calls[COUNT];
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

#define FUNCTION_(name, jump) \\
  __asm__(".text\\n.globl " #name "\\n.hidden " #name "\\n.type " #name ", %function\\n" #name ":\\n" jump)
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


def find_driver_calls(symbols: Iterable[str], include_dirs: Sequence[Path]) -> tuple[str, ...]:
    """Return those of the undefined symbols that `cuda.h` declares as functions of the driver."""
    candidates = sorted(filter(_CALL.fullmatch, symbols))
    header = next((path for path in (root / "cuda.h" for root in include_dirs) if path.is_file()), None)
    if not candidates or header is None:
        return ()
    declared = set(re.findall(r"\bCUDAAPI\s+(\w+)\s*\(", header.read_text(encoding="utf-8", errors="replace")))
    return tuple(name for name in candidates if _VERSION.sub("", name) in declared or name in declared)


def driver_calls_text(functions: Sequence[str]) -> str:
    """Return C text that defines functions of the driver."""
    return _TEXT.format(
        count=len(functions),
        names="".join(f'    "{name}",\n' for name in functions),
        calls="".join(f"CALL({name}, {8 * index});\n" for index, name in enumerate(functions)),
    )
