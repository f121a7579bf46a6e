"""The journal: what a training process writes and the collector reads."""
