"""Asks an interpreter, which need not have radt, what is installed for it."""

#: A program for that interpreter, which may be older than ours; prints ``name==version`` lines, the
#: interpreter itself first.
LIST_PACKAGES = """
import sys
sys.path[:] = [entry for entry in sys.path if entry not in ("", ".")]
from importlib.metadata import distributions
found = {}
for one in distributions():
    name = one.metadata["Name"]
    if name and name.lower() not in found:  # the first on sys.path is what gets imported
        found[name.lower()] = name + "==" + (one.version or "unknown")
print("python==" + sys.version.split()[0])
print("\\n".join(found[name] for name in sorted(found)))
"""
