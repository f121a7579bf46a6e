"""A plug-in for pytest: the tests of another project run with `radt.autolog`."""

import radt

radt.autolog()
