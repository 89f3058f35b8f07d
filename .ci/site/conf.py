"""Sphinx's settings for the documentation; `build.py` gathers the pages."""

project = "openagentic_sdk"
copyright = "the authors"
extensions = ["myst_parser", "sphinx_copybutton"]
html_theme = "furo"
html_title = project
html_copy_source = False
html_show_sourcelink = False
myst_heading_anchors = 3
pygments_style = "friendly"
pygments_dark_style = "native"
