"""How Sphinx makes the site of docs/: `make docs`."""

import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

_project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
project = _project["name"]
release = version = _project["version"]
copyright = "the pncs-flower developers"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "made_from_code",
    "navigation",
]
exclude_patterns = ["site"]

myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4
smartquotes = False  # options begin with two hyphens

autodoc_mock_imports = [name for name in ("torch",) if find_spec(name) is None]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False
python_maximum_signature_line_length = 88
python_display_short_literal_types = True
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
add_module_names = False
default_role = "py:obj"

html_theme = "furo"
html_title = f"{project} {release}"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sphinx = False
html_use_index = False  # nothing would lead to it; the search finds names
html_theme_options: dict[str, Any] = {
    "light_css_variables": {
        "color-brand-primary": "#00568a",
        "color-brand-content": "#00568a",
        "color-brand-visited": "#00568a",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7fc1ea",
        "color-brand-content": "#7fc1ea",
        "color-brand-visited": "#7fc1ea",
    },
}
pygments_style = "tango"
pygments_dark_style = "github-dark"

copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
copybutton_here_doc_delimiter = "END"
copybutton_exclude = ".linenos, .gp"
