"""Experiments over a cluster: each workload is a job of an engine, such as Slurm."""
