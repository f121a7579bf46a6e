"""Experiment files: read, check, plan, and write statuses back.

`source` opens a file, a sweep or one program. `table` splits its text, `columns` and `row` check
the cells, and `check` makes a `plan.ExperimentPlan` of all rows, or reports all problems at once.
`status` changes single cells of a file that its user may be editing, and `lock` keeps two runners
off it. Nothing here knows where rows run.
"""
