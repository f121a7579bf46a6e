"""Measures of recorded runs, reports of them, and comparisons between them.

Only this package computes facts; commands, documents and the dashboard ask it for them.

- `selection` decides which runs count and why the others do not, `windows` which part of each run.
- `collocated` decides whether the workloads of an experiment are compared, or its runs.
- `quantities` lists the facts, `series_quantities` those of any metric. `reading` and `measures`
  evaluate series within the windows, and `missing` says why a value is missing.
- `baselines` finds the run to compare each run with: the same one, alone. `summaries` has one
  `estimates.Estimate` per quantity: mean, one value per repeat, interval. A `report.Report` has all
  of an experiment.
- `operands`, `matching` and `findings` compare two reports; `fail_if` checks conditions.
- Advice reads one report into models alone and measured workloads (`advice_measurements`), predicts
  for any candidate whether it fits and how much it slows runs down (`advice_prediction`), and
  recommends (`advice_choice`).
- `kinds` has what was measured of the rows that the runner groups (`radt.runner.placement`).
- `lines` reduces a series for charts, `metric_columns` to one number per run.
"""
