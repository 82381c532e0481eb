"""A unit of hand-written C++ and its exports in, the text that the compiler reads out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jitload.host_cpp.precompiled import PRELUDE
from jitload.request.request import Unit

_PRELUDE = "".join(f"#include <{name}>\n" for name in PRELUDE)
# What upstream's macro for docs does, which does nothing unless all functions carry metadata.
_DOC = """\
extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi__doc_{name}(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {{
  TVMFFIByteArray text{{{text}, {size}}};
  return TVMFFIStringFromByteArray(&text, result);
}}
"""


def unit_text(unit: Unit, exports: Sequence[tuple[str, str]]) -> str:
    """Return what the compiler reads of a unit: its pieces under their own names and lines, and the exports."""
    parts = [] if unit.is_file else [_PRELUDE]
    for label, text in unit.pieces:
        parts.append(f"#line 1 {_quoted(label)}\n{text}\n")
    for name, doc in exports:
        line = _quoted(f"functions['{name}']")
        parts.append(f"#line 1 {line}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, {name});\n")
        if doc:
            parts.append(_DOC.format(name=name, text=_quoted(doc), size=len(doc.encode())))
    return "".join(parts)


def _quoted(text: str) -> str:
    """Return a text as a C++ string literal; what is not plain ASCII stays as it is in UTF-8."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\{ord(found[0]):03o}", text) + '"'
