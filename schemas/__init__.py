"""SQL migrations of the store, and the schema of experiment files."""
