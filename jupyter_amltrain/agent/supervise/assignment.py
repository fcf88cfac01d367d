"""Assignment: a job with its devices, as the dispatcher passes it to a supervisor."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional


class Assignment(NamedTuple):
    """A job with its assigned devices. In memory only."""

    home: str
    folder: str
    job: Dict[str, Any]
    state: Dict[str, Any]
    environ: Dict[str, str]
    secrets: Dict[str, str]
    devices: List[str]
    cpu_slot: Optional[int]
    hide_gpus: bool  #: the machine has GPUs and the job gets none
    queued_for: float  #: seconds from submit to this assignment
    assigned: float  #: unix seconds; jobs of one queue start in this order
    queue: str  #: the queue folder
    number: int  #: of the slot record
    gpu_variables: Dict[str, str] = {}  #: environment by which the job finds its GPUs

    @property
    def mark(self) -> str:
        """Value of the environment variable that marks the run's processes."""
        return "%s:%s" % (self.job["run"], self.state["mark"])

    @property
    def submission(self) -> str:
        """Id of the submission that created the run folder; empty if it has none."""
        return str(self.job.get("submission") or "")
