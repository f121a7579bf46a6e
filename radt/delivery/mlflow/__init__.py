"""Deliver runs to MLflow: their metrics, params, tags, artifacts and archives.

`tasks` decides what is due and when to retry it, `uploader` uploads one run, `runs` creates
MLflow's runs, `points` and `limits` turn records into what MLflow takes, and `target` makes the
calls, whose failures `errors` classifies.
"""
