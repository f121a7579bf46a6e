"""What sharing a device would bring: predicted from runs that ran alone, and how well."""
