"""SQL migrations of the store (`radt.store.migrations` applies them)."""
