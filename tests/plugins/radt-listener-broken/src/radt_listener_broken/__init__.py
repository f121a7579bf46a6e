"""Each of these breaks another promise of `radt.listeners.api`."""

import sys

from radt.listeners.api import Availability, Listener, Metric, Reading
from radt.model import Scope


class _Sound(Listener):
    """Nothing is wrong with this one."""

    @classmethod
    def probe(cls):
        return Availability(True)

    @classmethod
    def metrics(cls):
        return [Metric(f"{cls.name}.value", "1", Scope.HOST)]

    def sample(self, targets):
        return [Reading(f"{self.name}.value", 1.0)]


class Incomplete(Listener):
    """Lacks what a listener must have."""

    name = "incomplete"

    @classmethod
    def probe(cls):
        return Availability(True)


class Unprobed(_Sound):
    """Raises where it must not."""

    name = "unprobed"

    @classmethod
    def probe(cls):
        raise OSError("no such bus")


class Secretive(_Sound):
    """Does not say what it reads."""

    name = "secretive"

    @classmethod
    def metrics(cls):
        raise LookupError("it is a secret")


class Raising(_Sound):
    """Raises whenever it samples."""

    name = "raising"

    def sample(self, targets):
        raise RuntimeError("out of paper")


class Lying(_Sound):
    """Reads what it did not say."""

    name = "lying"

    def sample(self, targets):
        return [Reading("lying.other", 1.0)]


class Endless(_Sound):
    """Ends the process, as some libraries do when they fail."""

    name = "endless"

    def sample(self, targets):
        sys.exit("the library gave up")


class Top(_Sound):
    """Wants a name that is taken."""

    name = "top"
