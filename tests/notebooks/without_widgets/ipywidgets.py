"""Stands before the real one in PYTHONPATH, to see the notebooks run without it."""

raise ImportError("ipywidgets is hidden")
