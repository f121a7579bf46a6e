"""Imports of runs that other programs recorded: MLflow, TensorBoard, W&B, CSV logs.

A `source.ImportSource` lists runs and yields their points; `importing` and `run_import` add what
the store lacks. A source of files is a module with ``source(place)`` and a line in
`radt.cli.import_`. It opens files through `below` only, reads CSV with `radt.experiment.table`, and
wraps the parsing of each record in `files.guarded`: files of others may be damaged or hostile.
"""
