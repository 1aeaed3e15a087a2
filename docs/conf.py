"""The documentation: `python -m sphinx -W docs docs/_build/html`."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

import cupyrnn  # noqa: E402

project = "cupyrnn"
author = "The cupyrnn developers"
copyright = f"2026, {author}"
release = version = cupyrnn.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "myst_nb",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
# What stands in single backticks in a docstring is a function of the package, or plain code.
default_role = "py:obj"

# The package is described without PyTorch, and its operators, and what else it can do without.
autodoc_mock_imports = [
    "cupy",
    "cupyrnn.torch.definitions",
    "cupyrnn.torch.ops",
    "jax",
    "mpi4py",
    "torch",
]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autosummary_generate = False
# It warns of names with their module, which matters only where pages are generated.
suppress_warnings = ["autosummary.import_cycle"]
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
numpydoc_xref_param_type = False

myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
# Notebooks are shown as they are stored.
nb_execution_mode = "off"
nb_code_prompt_show = "Show the code that draws this"
nb_code_prompt_hide = "Hide the code"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"cupyrnn {version}"
# MathJax in one file that is part of the site, so that nothing is fetched from elsewhere.
(MATHJAX,) = importlib.util.find_spec("sphinx-mathjax-offline").submodule_search_locations
html_static_path = ["_static", f"{MATHJAX}/static/mathjax/tex-svg.js"]
mathjax_path = "tex-svg.js"
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_show_sourcelink = False
# A literal block of a docstring is an equation or a table; what is Python says so.
highlight_language = "none"
pygments_style = "friendly"
pygments_dark_style = "monokai"


def copy_notebooks(app: Sphinx) -> None:
    """Bring the notebooks, which lie beside this folder, to where Sphinx looks for pages."""
    target = HERE / "notebooks"
    for old in target.glob("[0-9]*.ipynb"):
        old.unlink()
    for notebook in (ROOT / "notebooks").glob("[0-9]*.ipynb"):
        shutil.copy(notebook, target)
    # What a notebook links to.
    (target / "data").mkdir(exist_ok=True)
    for script in (ROOT / "notebooks").rglob("*.py"):
        shutil.copy(script, target / script.relative_to(ROOT / "notebooks"))


class IndexLeadsToSections(SphinxTransform):
    """
    Have a word of the index lead to the section that it stands in, or to its page.

    Its own target is empty: the search has no excerpt to show, and Sphinx's script ends there.
    """

    default_priority = 800  # before Sphinx collects the index, at 850

    def apply(self) -> None:
        """Put the ids of sections into the entries."""
        for node in self.document.findall(addnodes.index):
            section = node.parent
            if isinstance(section, nodes.section) and node["entries"][0][2].startswith("index-"):
                place = "" if section.parent is self.document else section["ids"][0]
                node["entries"] = [(*e[:2], place, *e[3:]) for e in node["entries"]]


class TablesOfNumbers(SphinxTransform):
    """
    Make tables of many columns with short cells narrow.

    They get the class "numbers", for small letters, or "numbers narrow" if their rows are short.
    Empty columns go. A size, an interval and a pair stay on one line; other cells may break.
    """

    default_priority = 800

    def apply(self) -> None:
        """Find these tables and change them."""
        for table in self.document.findall(nodes.table):
            rows = [list(row.findall(nodes.entry)) for row in table.findall(nodes.row)]
            if len(rows[0]) < 5 or max(len(cell.astext()) for row in rows for cell in row) > 60:
                continue
            table["classes"].append("numbers")
            columns, width = zip(table.findall(nodes.colspec), *rows, strict=True), 0
            for spec, head, *cells in list(columns):
                if any(cell.astext() for cell in cells):
                    width += max(len(cell.astext()) for cell in (head, *cells)) + 2
                else:
                    for node in (spec, head, *cells):
                        node.parent.remove(node)
            if width <= 115:
                table["classes"].append("narrow")
            for text in list(table.findall(nodes.Text)):
                kept = re.sub(r"\([^)]*\)| / ", lambda m: m[0].replace(" ", "\xa0"), text)
                text.parent.replace(text, nodes.Text(kept.replace("–", "–\N{WORD JOINER}")))


def skip_fields(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out the fields of named tuples that only have Python's own docstring."""
    return True if (obj.__doc__ or "").startswith("Alias for field number") else None


def list_functions(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put a table of its functions, a line for each, behind every page in the reference's index."""
    if docname != "reference/index":
        return
    tables = ""
    for page in re.findall(r"^   (\w+)$", source[0], re.MULTILINE):
        path = HERE / "reference" / f"{page}.rst"
        if not path.exists():  # a page without functions
            continue
        text = path.read_text(encoding="utf-8")
        module, names = "", []
        for directive, name in re.findall(r"^\.\. (\w+):: (\S+)$", text, re.MULTILINE):
            if directive == "currentmodule":
                module = name
            elif directive == "autofunction":
                names.append(f"   ~{module}.{name}\n")
        title = text.partition("\n")[0]
        line = f":doc:`{title} <{page}>`"
        tables += f"\n{line}\n{'-' * len(line)}\n"
        tables += f"\n.. autosummary::\n   :nosignatures:\n\n{''.join(names)}" if names else ""
    source[0] += tables


def setup(app: Sphinx) -> dict[str, bool]:
    """Add what the theme and Sphinx do not have."""
    app.add_transform(IndexLeadsToSections)
    app.add_transform(TablesOfNumbers)
    app.connect("builder-inited", copy_notebooks)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("source-read", list_functions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
