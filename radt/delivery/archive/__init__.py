"""Archives of runs: all their data as Parquet files and one JSON file.

An archive can be read without radt; with radt, it restores the run into a store.
"""
