"""Resource-aware experiment tracker and benchmark runner for deep learning."""

__version__ = "1.0.0.dev0"
