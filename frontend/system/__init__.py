"""What the System page shows: the machine, its stores, and what waits to leave it."""
