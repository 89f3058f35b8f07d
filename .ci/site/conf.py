"""Sphinx settings for the documentation; `build.py` gathers the pages."""

from pathlib import Path

project = "openagentic_sdk"
copyright = "the authors"
extensions = ["myst_parser", "sphinx_copybutton"]
html_theme = "furo"
html_title = project
html_copy_source = False
html_show_sourcelink = False
myst_heading_anchors = 3
smartquotes = False  # a dash, a quote or three dots may be part of a flag or of code
pygments_style = "friendly"
pygments_dark_style = "native"
# Unlike the other paths, this one is not relative to this file.
html_search_scorer = str(Path(__file__).with_name("search.js"))
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_extra_path = ["404.html"]
