"""Environments that provide runs with an interpreter and packages: local, uv, conda, docker.

`spec` reads a cell and has the interface, `spec.BuiltEnvironment`; `build` chooses the tool;
`cache` keeps one built environment for each content; `mlproject` reads MLflow's project folders.
"""
