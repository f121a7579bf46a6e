"""``python -m radt``, where the ``radt`` script is not on PATH."""

from radt.cli import main

main()
