"""``python -m radt.loaders.serve``: the server of a `radt.loaders.SharedLoader`."""

import sys

from radt.loaders.shared.serve import main

if __name__ == "__main__":
    sys.exit(main())
