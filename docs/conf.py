"""Configuration of Sphinx: Markdown pages, warnings are errors (`make docs`)."""

project = "ondie"
extensions = ["myst_parser"]
exclude_patterns = ["build"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing", "image.not_readable"]
