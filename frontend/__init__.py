"""The dashboard: a Dash application that reads the sample store and nothing else."""
