"""``python -m radt.collector`` runs the collector in the foreground; clients add ``--detach``."""

import sys

from radt.collector.guardian import main

sys.exit(main(detach="--detach" in sys.argv[1:]))
