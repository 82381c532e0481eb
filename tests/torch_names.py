"""Write `docs/torch_names.md`, the names of torch's C++ interface that the light headers have: `python torch_names.py`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from jitload.host_cpp.torch_headers import FORWARDED

_ROOT = Path(__file__).parent.parent
_HEADERS = _ROOT / "jitload/include/torch_light"
PAGE = _ROOT / "docs/torch_names.md"
_MACRO = re.compile(r"^#define ((?:AT|TORCH|C10|CUDA|PYBIND11)_\w+)(?<!_)\b", re.MULTILINE)
_TYPE = re.compile(r"^(?:  )?(?:class|struct|enum class|using) (\w+)(?: (?:final )?[:{=]|;| =)", re.MULTILINE)
_FUNCTION = re.compile(
    r"^(?:(?:inline|constexpr|C10_HOST_DEVICE) [\w:<>&* ]+?|T|Tensor|void|Range<\w>) [&*]?([a-zA-Z]\w+)\(", re.MULTILINE
)
_SHUFFLE = re.compile(r"^JITLOAD_TORCH_SHUFFLE_\((\w+),", re.MULTILINE)
_INTERNAL = re.compile(
    r"JITLOAD|operator|OptionalArg|TextArg|TensorDataContainer|tensor_of|change_filled|release_with|tensor_over|scalar_tensor_of|device_name|append|"
    r"(?:bits|half|float)_to_|(?:fill|if|return|accept|Attribute|Doc|Range|Tag|Type|iterator|const_iterator|from_bits_t|\w+Base)$"
)
_METHOD = re.compile(
    r"^  (?:const |static |constexpr )*[\w:<>&* ]+? [&*]?(?!object|op\b|reread|scalarType)([a-z]\w+)\(", re.MULTILINE
)


def names_page() -> str:
    """Return the page."""
    texts = {path.stem: path.read_text() for path in sorted((_HEADERS / "jitload_torch").glob("*.h"))}
    public = "\n".join(text for stem, text in texts.items() if stem not in ("runtime", "convert"))
    public = re.sub(
        r"^namespace jitload_torch \{.*?^\}  // namespace jitload_torch", "", public, flags=re.DOTALL | re.MULTILINE
    )
    tensor_class = re.search(r"^class Tensor \{.*?^\};", texts["tensor"], re.DOTALL | re.MULTILINE)
    assert tensor_class is not None
    rows = [line.split("\t") for line in (_HEADERS / "operators.txt").read_text().splitlines()]
    headers = (name for names in FORWARDED.values() for name in names.split())
    outside = public.replace(tensor_class[0], "")
    return "".join(
        (
            "# Names in the headers for torch\n\n",
            "This page is generated with `python tests/torch_names.py`. [Texts for torch](torch.md) says how they are used.\n",
            _section("Headers", headers),
            _section("Macros", _MACRO.findall(public)),
            _section(
                "Types and constants",
                [*_TYPE.findall(outside), *re.findall(r"\b(k[A-Z]\w+)(?= =|,$)", texts["core"] + texts["dtypes"])],
            ),
            _section("Functions", [*_FUNCTION.findall(outside), *_SHUFFLE.findall(outside)]),
            _section(
                "Methods of Tensor that need no call of torch, or have their own form",
                _METHOD.findall(tensor_class[0].split(" private:")[0]),
            ),
            _section(
                "Operators of ATen as functions, `at::name` and `torch::name`",
                (row[0] for row in rows if row[2] == "f"),
            ),
            _section("Operators of ATen as methods of Tensor", (row[0] for row in rows if row[2] == "m")),
        )
    )


def _section(title: str, names: Iterable[str]) -> str:
    unique = sorted({name for name in names if not _INTERNAL.match(name)})
    lines = textwrap.wrap(
        ", ".join(f"`{name}`" for name in unique), 118, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(("", f"## {title}", "", *lines, ""))


if __name__ == "__main__":
    PAGE.write_text(names_page())
