"""Cannot be imported."""

raise RuntimeError("the driver's library is of another version")
