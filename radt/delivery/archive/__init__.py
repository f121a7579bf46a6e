"""Archives of runs: everything recorded, as Parquet files and one JSON file.

An archive needs none of our code to be read, and fills a store again with ours.
"""
