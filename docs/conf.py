"""Sphinx configuration of the documentation: `make docs`."""

import importlib.metadata
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "python")]


def options_table() -> str:
    """Returns a Markdown table of the options of `qacg train --config` and `--set`."""
    from qacg_models.sentiment.record import describe_options

    rows = [f"| `{name}` | {text.replace('|', ' or ')} |" for name, text in describe_options().items()]
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


project = "qacg_kernels"
author = "the qacg_kernels authors"
version = release = importlib.metadata.version("qacg-kernels")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxarg.ext",
]
exclude_patterns = ["_build"]
nitpicky = False
default_role = "code"  # docstrings write `name` as Markdown does

smartquotes = False  # it would turn the two hyphens of a flag into a dash

myst_enable_extensions = ["colon_fence", "deflist", "substitution"]
myst_substitutions = {"options_table": options_table()}
myst_heading_anchors = 4
# Links to Markdown files outside of docs are plain text on the site; tests/project/test_docs_links.py checks all links.
suppress_warnings = ["myst.header", "myst.xref_missing"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = "qacg_kernels"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sourcelink = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
