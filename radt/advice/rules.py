"""The guidelines that advice follows, each with where it comes from.

T. Robroek: Resourceful Learning, IT University of Copenhagen, 2024, chapter 4. The guidelines are
in section 4.5.1, what they rest on in section 4.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

#: "Notably high utilisation (~80%)": section 4.4.2, where sharing began to gain little.
SATURATED = 0.8
#: "Less than 50%, the 2-way collocation easily doubles the throughput under MPS": section 4.4.2.
ROOMY = 0.5
#: What a run may take of the SMs to stress another part of the GPU than its neighbours: the
#: recommender of section 4.4.7 took 5 %.
LIGHT = 0.25


@dataclass(frozen=True, slots=True)
class Guideline:
    """What a rule says, and where it stands; ``section`` is empty of radt's own."""

    text: str
    section: str = ""


class Rule(Enum):
    """Why something is advised."""

    MEMORY_ADDS_UP = Guideline("footprints add up and have to fit", "4.5.1")
    DIMINISHING = Guideline("a device that is nearly busy gains little from sharing", "4.5.1")
    ROOM_TO_SHARE = Guideline("below half of the SMs' time, two at once nearly double", "4.4.2")
    COMPLEMENTS = Guideline("runs that stress different parts hardly disturb each other", "4.4.7")
    ONE_USER = Guideline("for one user MPS is the better way to share", "4.5.1")
    SEPARATION = Guideline("strict separation is there on MIG instances only", "4.5.1")
    ENERGY = Guideline("near MPS's speed MIG takes less energy", "4.5.1")
    RIGID = Guideline("instances keep what a run that has ended leaves", "4.4.6")
    CORES_ADD_UP = Guideline("cores in use add up")
    MEASURED = Guideline("it was measured")
    FEWER = Guideline("more at once would bring less than 5 % more")
    TOO_SLOW = Guideline("more at once would slow each run down too far")


@dataclass(frozen=True, slots=True)
class Reason:
    """A rule, and the numbers that it was applied to."""

    rule: Rule
    numbers: str

    @property
    def text(self) -> str:
        """``footprints add up and have to fit: 10.4 of 39.6 GB (4.5.1)``."""
        guideline = self.rule.value
        where = f" (§{guideline.section})" if guideline.section else ""
        return f"{guideline.text}: {self.numbers}{where}"
