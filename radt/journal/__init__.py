"""The journal: training processes log into files that survive the processes.

`writer` is the process's side and imports the standard library only; `reader` is the collector's,
which reads while others write. `format` has the layout that both share.
"""
