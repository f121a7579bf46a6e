"""Data of the dashboard: the store, its series in memory, and the data of each page.

`source` is the store as pages see it, `series_cache` the series, `chart_data` what one chart needs,
`catalog` the runs and their colours. Facts come from `radt.analysis`.
"""
