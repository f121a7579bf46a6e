"""Builds the documentation site: ``python -m docs.generator``, or ``make docs``.

Pages are the Markdown files of this folder's parent, which GitHub shows as well. What the program
itself knows best (commands, settings, columns, metrics, the Python API) is generated into the pages
of ``reference`` wherever they say ``<!-- generated: NAME -->``.
"""
