"""Sets the devices up as a workload's plan says, and takes away again what it made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from radt.collocation.planner import DevicePlan

if TYPE_CHECKING:
    from radt.collocation.verify import Mismatch


class DeviceSetup:
    """The devices of one workload, from set-up to clean-up.

    Args:
        plan: What `radt.collocation.planner.plan_devices` made of the workload's rows.
        run_ids: The run of each key, noted with what is made for it.
        workload_id: Likewise, the workload.
    """

    def __init__(
        self, plan: DevicePlan, *, run_ids: Mapping[str, str], workload_id: str = ""
    ) -> None:
        self.plan = plan
        self.run_ids = run_ids
        self.workload_id = workload_id

    def set_up(self, say: Callable[[str], None], cancelled: Callable[[], bool]) -> None:
        """Create the MIG instances and start the MPS daemons of the plan.

        Args:
            say: Takes a sentence about each thing that is being made.
            cancelled: Asked between steps; if true, what was made is taken down and this returns.

        Raises:
            DeviceError: Something could not be made; what was made before it is taken down.
        """
        raise NotImplementedError

    def environment(self, key: str) -> dict[str, str]:
        """The variables that put a run onto its devices."""
        raise NotImplementedError

    def tags(self, key: str) -> dict[str, str]:
        """What is recorded of the run's devices."""
        raise NotImplementedError

    def devices(self, key: str) -> tuple[str, ...]:
        """The run's GPUs as the collector's listeners know them: NVML indices."""
        raise NotImplementedError

    def verify(self, pids: Mapping[str, Sequence[int]]) -> list[Mismatch]:
        """Runs whose processes are seen elsewhere than planned; ask again until all are seen."""
        raise NotImplementedError

    def about_to_kill(self, pids: Sequence[int]) -> None:
        """Take MPS clients off their server, so that killing them leaves it sane."""
        raise NotImplementedError

    def tear_down(self) -> list[str]:
        """Take away what `set_up` made; what could not be is returned, a sentence each.

        Never raises; may be called from several threads, and again.
        """
        raise NotImplementedError
