"""The configuration of Sphinx: `sphinx-build -W docs build/manual` makes the manual."""

from importlib import import_module
from importlib.util import find_spec

import jitload

project = "jitload"
author = "The jitload authors"
copyright = author  # noqa: A001  Sphinx's name
release = jitload.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click", "sphinx_copybutton"]
exclude_patterns = ["README.md"]  # index.md includes it
myst_heading_anchors = 3
default_role = "code"  # docstrings have `names` in single backticks

if find_spec("torch") is None:  # the manual needs only the signatures of the functions that use torch
    import_module("tvm_ffi")  # it looks for torch, so it is imported before torch is replaced
    autodoc_mock_imports = ["torch"]
autodoc_member_order = "bysource"
autodoc_use_type_comments = False
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = "jitload"
html_theme_options = {"source_directory": "docs/"}
html_show_sourcelink = False
html_copy_source = False
