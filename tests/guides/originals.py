"""The code in the guides' own text, taken out of the mails that carry it, and what surrounds each piece to compile it.

The texts are not here; `JITLOAD_GUIDES` names a directory with them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A code block: its language, its text, and where it is from."""

    language: str
    text: str
    name: str


def find_pieces(directory: Path) -> list[Piece]:
    """Return the code blocks and files of all texts in a directory; what a change took out is not among them."""
    pieces: list[Piece] = []
    for path in sorted(directory.glob("*.*")):
        text = path.read_text(encoding="utf-8")
        found = [*_fenced(_unfold(text)), *_doxygen(text), *_restructured(text), *_files(text)]
        stem = path.stem.partition("_")[0]
        names = {language: 0 for language, _ in found}
        for language, code in found:
            pieces.append(Piece(language=language, text=code, name=f"{stem}-{language}{names[language]}"))
            names[language] += 1
    return [piece for at, piece in enumerate(pieces) if piece.text not in {other.text for other in pieces[:at]}]


def _unfold(text: str) -> str:
    """Give a diff that came as one line its lines back: each begins with a plus, which C++ has between words too."""
    if text.count("\n") > 50 or " +" not in text:
        return text
    lines, rest = [""], text
    while found := re.search(r" \+(?=( ?\+| ?))", rest):
        before = lines[-1] + rest[: found.start()]
        is_comment = re.search(r"(^|\s)(//|# )", before) is not None
        if found[1] != " " or is_comment or before.endswith((";", "{", "}", "(", ",", ">", '"', ":")) or not before:
            lines[-1:] = [before, ""]
        else:
            lines[-1] = before + " +"
        rest = rest[found.end() :]
    return "\n".join([*lines[:-1], lines[-1] + rest])


def _fenced(text: str) -> Iterator[tuple[str, str]]:
    for indent, language, code in re.findall(r"^( *)```(\w+)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        yield language, re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)


def _joined(text: str) -> list[str]:
    """Return the lines that a diff adds; what the mail broke is one line again."""
    lines: list[str] = []
    is_open = False
    for line in text.splitlines():
        if line.startswith("+"):
            lines.append(line[1:])
            is_open = True
        elif not line or line.startswith(("-", "@@", "diff ", "> ", "##")):
            is_open = False
        elif is_open:
            lines[-1] += " " + line.strip()
    return lines


def _doxygen(text: str) -> Iterator[tuple[str, str]]:
    joined = "\n".join(re.sub(r"^ \* ?", "", line) for line in _joined(text))
    yield from re.findall(r"^\s*\\code\{\.(\w+)\}\n(.*?)^\s*\\endcode", joined, re.DOTALL | re.MULTILINE)


def _restructured(text: str) -> Iterator[tuple[str, str]]:
    lines = _joined(text)
    for at, line in enumerate(lines):
        if found := re.match(r"\.\. code-block:: (\w+)", line):
            body = []
            for following in lines[at + 1 :]:
                if following and not following.startswith(" "):
                    break
                body.append(following)
            yield found[1], "\n".join(body).strip() + "\n"


def _files(text: str) -> Iterator[tuple[str, str]]:
    """Yield the files that a change adds as `("file:scale_kernel.cu", text)`."""
    for path, body in re.findall(r"^\+\+\+ b/(examples/\S+)\n(.*?)(?=^diff |\Z)", text, re.DOTALL | re.MULTILINE):
        yield f"file:{Path(path).name}", "\n".join(_joined(body)) + "\n"


_INCLUDES = """\
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
#include <tvm/ffi/function.h>
#include <jitload/kernel_library.h>
"""
_TEMPLATE = "template <class T> __global__ void ScaleKernel(T* out) {}\n"
_ABOVE = "TVM_FFI_EMBED_CUBIN(my_kernels);\nvoid LaunchOnDevice(tvm::ffi::CubinKernel&, tvm::ffi::TensorView) {}\n"
_FRAGMENT = """
void Fragment(tvm::ffi::TensorView tensor, tvm::ffi::TensorView input, tvm::ffi::TensorView output) {{
{given}  {{
{code}
  }}
}}
"""
# Names that a fragment uses and does not declare, in the order in which they are declared.
_NAMES = {
    "module": "tvm::ffi::CubinModule& module = EmbedCubinModule_my_kernels::Global()->mod;",
    "kernel": 'static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(my_kernels, "add_one");',
    "args": "void* args[] = {nullptr};",
    "kernelParamsList": "void* kernelParamsList[] = {nullptr};",
    "grid": "tvm::ffi::dim3 grid(1);",
    "block": "tvm::ffi::dim3 block(1);",
    "stream": "CUstream stream = nullptr;",
    "n": "int64_t n = 1;",
    "blocks": "int blocks = 1, threads = 32;",
    "config": "CUlaunchConfig config = {};",
    "func": "CUfunction func = nullptr;",
    "sharedMemBytes": "unsigned sharedMemBytes = 0;",
    "clusterDimX": "unsigned clusterDimX = 2;",
    "numCtasX": "unsigned numCtasX = 2, numCtasY = 1, numCtasZ = 1, threadsPerCTA = 32;",
    "enable_pdl": "bool enable_pdl = true;",
}
_PLACEHOLDERS = (
    (r"= \.\.\.;", "= {};"),
    (r"\{ \.\.\. \}", "{}"),
    (r"\{\.\.\.\}", "{nullptr}"),
    (r"\b(grid|block)\(\.\.\.\)", r"\1(1)"),
    (r"(cuLaunchKernelEx\([^;]*),\s+\.\.\.\)", r"\1, nullptr, nullptr)"),
    (r"(<<<[^;]*), \.\.\.\)", r"\1)"),
)


def complete(piece: Piece) -> str:
    """Return a whole translation unit around a piece of C++."""
    code = piece.text
    for pattern, value in _PLACEHOLDERS:
        code = re.sub(pattern, value, code)
    if re.search(r"^TVM_FFI_EMBED_CUBIN\(", code, re.MULTILINE):
        return _INCLUDES + code
    if re.search(r"^(cuda_api::ResultType )\w+\(", code, re.MULTILINE):  # members that the text proposes
        return f"{_INCLUDES}namespace tvm {{\nnamespace ffi {{\nstruct Proposed {{\n{code}\n}};\n}}\n}}\n"
    if re.search(r"^\s*void \w+\(", code, re.MULTILINE):
        return _INCLUDES + _ABOVE + code
    given = [text for name, text in _NAMES.items() if _needs(code, name)]
    lines = "".join(f"  {text}\n" for text in given)
    template = _TEMPLATE if "<<<" in code else ""
    return _INCLUDES + _ABOVE + template + _FRAGMENT.format(given=lines, code=code)


def _needs(code: str, name: str) -> bool:
    is_declared = re.search(rf"(?:\w|[*&>])\s+\**{name}\s*(?:=|\(|\[|;)", code) or re.search(rf"\), {name}\(", code)
    return re.search(rf"\b{name}\b", re.sub(r"//.*", "", code)) is not None and is_declared is None
