"""Which machine of a target has each run, and which one gets the next. Loop thread only."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from jupyter_amltrain.schema.job import JobSpec

#: Seconds after which a run that was planned and not launched does not count any more, as that of a dry run.
_PLANNED_S = 60.0


class RunPlacement:
    """Machines of runs by run id: of those that this kernel has placed, found or listed."""

    def __init__(self) -> None:
        self._machines: dict[str, int] = {}
        self._planned: dict[str, float] = {}  #: monotonic seconds of runs that their machine does not count yet

    def knows(self, run_id: str) -> bool:
        """Whether the machine of a run is known."""
        return run_id in self._machines

    def machine_of(self, run_id: str) -> int:
        """Return the number of the machine on which a run depends, from 0; 0 if it is not known."""
        return self._machines.get(run_id, 0)

    def keep(self, run_id: str, machine: int) -> None:
        """Remember the machine of a run."""
        self._machines[run_id] = machine

    def forget(self, run_id: str) -> None:
        """Forget a deleted run."""
        self._machines.pop(run_id, None)
        self._planned.pop(run_id, None)

    def runs_besides(self, machines: Collection[int]) -> list[str]:
        """Return the runs of the other machines."""
        return [run_id for run_id, machine in self._machines.items() if machine not in machines]

    def planned(self) -> Collection[str]:
        """Return the runs that were planned and are not launched yet."""
        now = time.monotonic()
        self._planned = {run_id: at for run_id, at in self._planned.items() if now - at < _PLANNED_S}
        return frozenset(self._planned)

    def launched(self, run_id: str) -> None:
        """Count a run no longer as planned: its machine counts it now, or has refused it."""
        self._planned.pop(run_id, None)

    def choose(self, run_id: str, spec: JobSpec, loads: Mapping[int, Mapping[str, Any]], since: Collection[str]) -> int:
        """Place a run of one node on the machine with the most room, and return its number.

        Parameters
        ----------
        loads
            Answers to the agent's call ``info`` by machine, at least one.
        since
            Runs that were planned before `loads` were requested; those may not count them.
        """
        uses_gpus, able = _able(spec.resources.gpu_count, loads)
        kind = "gpu" if uses_gpus else "cpu"
        planned = {*since, *self.planned()}

        def used(machine: int) -> float:
            load = loads[machine]
            slots = load["slots"][kind]
            placed = sum(self._machines.get(run) == machine for run in planned)
            return float((slots["total"] - slots["free"] + load["queued"] + placed) / max(1, slots["total"]))

        machine = min(able or loads, key=lambda number: (used(number), number))
        self._machines[run_id] = machine
        self._planned[run_id] = time.monotonic()
        return machine


def _able(gpus: int | None, loads: Mapping[int, Mapping[str, Any]]) -> tuple[bool, list[int]]:
    """Return whether a run with `gpus` takes GPUs, and the machines that have enough; ``None`` is one if there is any.

    Without such a machine, the one with the most GPUs says why.
    """
    usable = {}
    for number, load in loads.items():
        slots = load["slots"]["gpu"]
        usable[number] = int(slots["total"]) - int(slots.get("lost", 0))
    most = max(usable.values())
    needed = min(1, most) if gpus is None else gpus
    return needed > 0, [number for number, count in usable.items() if count >= min(needed, most)]
