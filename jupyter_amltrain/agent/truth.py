"""The GPU-truth gate: did a run use the GPUs that it owns? Used, not used, or cannot tell.

*Not used* stops runs, so it needs evidence for all of it: every device at the utilization
and within 64 MiB of the memory that it had before the first rank started, on every tick of
the whole grace time.

Memory proves use at once. Utilization has other causes, too: a display, another container,
the driver that checks its memory when it is initialized (98 % for seconds). So it proves
use only 10 points above what it was before the run, on two ticks in a row; while memory
has not risen, not within the first seconds; and never where the driver's list of processes is
complete and none of the run's is on it. A list is complete where process ids are the
machine's own: in a container NVML gives the host's, some drivers mix the two, MIG gives none.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from . import clock, gpu_cause
from .gpu_names import gpu_name
from .protocol import DEFAULT_GPU_GRACE, JOB, SCHEMA, TRUTH, AgentError, read_json, read_state, write_json

USED, NOT_USED, CANNOT_TELL = "used", "not used", "cannot tell"

#: Below this utilization (percent) a device computes nothing.
MIN_UTILIZATION = 1.0
#: Points over the utilization before the run that prove use, and the ticks in a row that they need.
RISE, RISE_TICKS = 10.0, 2
#: Seconds in which a driver that was just initialized may be busy with itself.
SETTLE_S = 10.0
#: MiB over the memory before the run that are no evidence: less than any CUDA context takes.
MEMORY_SLACK_MIB = 64.0
#: A pause between two ticks that is longer than this many periods, and seconds, is a hole.
HOLE_PERIODS, HOLE_SECONDS = 5.0, 5.0
#: Seconds between the notes on disk of how far we watched; less than a hole.
NOTE_INTERVAL_S = 4.0

Reading = Mapping[str, Optional[float]]


class GpuUsageCheck:
    """The verdict on one run on one machine, kept in ``telemetry/truth-<node>.json``.

    Parameters
    ----------
    folder
        The run folder.
    gpus
        The run's devices: ``index``, ``uuid`` of each, as in the telemetry header.
    grace
        Seconds from the first process of the run until *not used* may be said.
    baselines
        MiB on each device before the first rank started; ``None`` where nobody knows.
        What an earlier sampler of the run has noted goes first.
    every
        Seconds between ticks.
    missing
        Why there is no reading of some assigned device; empty when all are read.
    why
        Finds the likely cause: ``why(pids, gpus)``.
    node
        Number of the machine within the run.
    busy
        Utilization (percent) of each device before the first rank started, as `baselines`.
    """

    def __init__(
        self,
        folder: str,
        gpus: Sequence[Mapping[str, Any]],
        grace: float,
        baselines: Sequence[Optional[float]],
        every: float = 1.0,
        missing: str = "",
        why: Callable[[Collection[int], Sequence[Mapping[str, Any]]], str] = gpu_cause.likely,
        node: int = 0,
        busy: Sequence[Optional[float]] = (),
    ) -> None:
        self.path = os.path.join(folder, TRUTH % node)
        self.gpus, self.grace, self.missing = gpus, grace, missing
        self.hole = max(HOLE_PERIODS * every, HOLE_SECONDS)
        self.why = why
        self.verdict = self.detail = self.cause = ""
        self.began: Optional[float] = None  #: first process of the run, monotonic
        self.watched: Optional[float] = None  #: last tick, monotonic
        self.doubt = missing or ("" if gpus else "no GPU could be read")
        self.baselines: List[Optional[float]] = list(baselines) + [None] * (len(gpus) - len(baselines))
        self.busy: List[Optional[float]] = list(busy) + [None] * (len(gpus) - len(busy))
        self._ticks_above = [0] * len(gpus)
        self._above_since = [0.0] * len(gpus)
        self._absent = [False] * len(gpus)  # the complete list of processes has none of ours
        self._most = [0.0, 0.0]  # highest utilization, highest rise of memory
        self._shared = [False] * len(gpus)
        self._noted: Optional[float] = None
        self._dirty = not self._resume()
        self._save()

    # -- ticks -------------------------------------------------------------------

    def tick(self, t: float, readings: Sequence[Reading], slow: Sequence[Reading], members: Mapping[int, Any]) -> None:
        """Take one sample.

        Parameters
        ----------
        t
            Seconds of the monotonic clock (``clock.mono``).
        readings
            ``{"util", "peak", "memory"}`` of each device: percent, percent, MiB; ``None`` for unknown.
        slow
            ``{"mine", "others"}``: MiB of the run's own and of other processes; ``None`` for
            unknown. ``"own": True`` tells a process of the run whose memory is unknown.
        members
            The run's processes by pid, without the sampler.
        """
        if self.verdict == USED:
            if self._dirty:
                self._save()
            return
        if self.began is None:
            if not members:
                self._before(readings, slow)
                return
            self.began = self.watched = t
            self._dirty = True
        if t - (self.watched or t) > self.hole:
            self._doubt("nothing was read for %.0f s" % (t - (self.watched or t)))
        self.watched = t
        proof = self._look(t, readings, slow)
        if proof:
            sentence, since = proof
            self._say(USED, "%s, first after %.0f s" % (sentence, since - self.began))
        elif not self.verdict and t - self.began >= self.grace:
            if self.doubt:
                self._say(CANNOT_TELL, self.doubt)
            else:
                self._say(NOT_USED, self._idle_sentence(), self.why(list(members), self.gpus))
        elif not self.verdict and t - (self._noted or 0.0) >= NOTE_INTERVAL_S:
            self._dirty = True
        if self._dirty:
            self._save()

    def share(self, at: int) -> None:
        """Others compute on a GPU too, also where the run is known to use it already."""
        if self._shared[at]:
            return
        self._share(at)
        if self.verdict == USED:
            self.detail = "%s; others compute on %s too" % (self.detail, gpu_name({"index": at, **self.gpus[at]}))
            self._save()

    def close(self) -> None:
        """The run has ended: what was not proved by now cannot be told."""
        if not self.verdict:
            if self.began is None:
                why = "the run ended before its processes were seen"
            else:
                seconds = (self.watched or self.began) - self.began
                why = "the run ended after %.0f s, before its grace time of %g s" % (seconds, self.grace)
            self._say(CANNOT_TELL, "; ".join(text for text in (why, self.doubt) if text))
        if self._dirty:
            self._save()

    def _before(self, readings: Sequence[Reading], slow: Sequence[Reading]) -> None:
        """A tick before the first rank: who is there now was there before us."""
        for at in range(len(self.gpus)):
            memory = _value(readings, at, "memory")
            if self.baselines[at] is None and memory is not None:
                self.baselines[at], self._dirty = memory, True
            busy = _busy(readings, at)
            if busy is not None and busy != self.busy[at]:
                # A display changes from tick to tick, a driver that starts gets quiet.
                before = self.busy[at]
                self.busy[at] = busy if before is None or before >= RISE else max(before, min(busy, RISE))
                self._dirty = True
            if _value(slow, at, "others"):
                self._share(at)
        if self._dirty:
            self._save()

    def _look(
        self, t: float, readings: Sequence[Reading], slow: Sequence[Reading]
    ) -> Optional[Tuple[str, float]]:  # fmt: skip
        """What proves use now, and since when; collects what takes away the right to say *not used*."""
        for at, gpu in enumerate(self.gpus):
            name = _name(gpu, at)
            mine, others = _value(slow, at, "mine"), _value(slow, at, "others")
            if mine or (at < len(slow) and slow[at].get("own")):
                return "%s has a process of this run" % name + (" with %.0f MiB" % mine if mine else ""), t
            if others:
                self._share(at)
            # An instance may list none although it is in use.
            self._absent[at] = mine == 0 and not gpu.get("mig")
            util, memory, busy = _value(readings, at, "util"), _value(readings, at, "memory"), _busy(readings, at)
            before = self.baselines[at]
            rise = None if memory is None or before is None else memory - before
            if not self._shared[at]:
                if rise is not None and rise > MEMORY_SLACK_MIB:
                    return "%s was used (%.0f MiB more than before the run)" % (name, rise), t
                if self._rises(t, at, busy, rise is not None):
                    return "%s was used (utilization %.0f %%)" % (name, busy or 0.0), self._above_since[at]
            if util is None:
                self._doubt("%s does not tell its utilization" % name)
            elif memory is None:
                self._doubt("%s does not tell its memory" % name)
            elif rise is None:
                self._doubt("the memory of %s before the run is not known" % name)
            else:
                self._most[1] = max(self._most[1], abs(rise))
                if rise < -MEMORY_SLACK_MIB:  # somebody else left: the rest of the change may be ours
                    self._doubt("%s lost %.0f MiB meanwhile, so others were on it" % (name, -rise))
        return None

    def _rises(self, t: float, at: int, busy: Optional[float], flat: bool) -> bool:
        """Whether utilization proves use; what it leaves open is a doubt.

        Parameters
        ----------
        flat
            Whether the memory is known to be as before the run.
        """
        before, began = self.busy[at], t if self.began is None else self.began
        if busy is None or self._absent[at]:
            self._ticks_above[at] = 0
            return False
        if before is not None and before >= RISE and busy < before:
            self.busy[at] = before = busy  # it was the driver's start, or somebody who has left
            self._dirty = True
        if t - began < SETTLE_S and (flat or before is None or before >= RISE):
            # The run's own use takes memory, too; where nobody tells it, it is still there afterwards.
            self._ticks_above[at] = 0
            return False
        name, usual = _name(self.gpus[at], at), before or 0.0
        self._most[0] = max(self._most[0], busy)
        if usual >= RISE:
            self._doubt("%s was busy already before the run (%.0f %%)" % (name, usual))
        if busy - usual < RISE:
            self._ticks_above[at] = 0
            if busy - usual >= MIN_UTILIZATION:
                self._doubt("%s was at %.0f %% utilization, too little to tell whose" % (name, busy))
            return False
        self._ticks_above[at] += 1
        if self._ticks_above[at] == 1:
            self._above_since[at] = t
            self._doubt("%s was at %.0f %% utilization for a moment" % (name, busy))
        return self._ticks_above[at] >= RISE_TICKS

    def _share(self, at: int) -> None:
        # For good: readings lag behind a process that leaves, and its memory was in the baseline.
        if not self._shared[at]:
            self._shared[at], self._dirty = True, True
        self._doubt("others compute on %s too" % _name(self.gpus[at], at))

    def _doubt(self, why: str) -> None:
        if not self.doubt:
            self.doubt, self._dirty = why, True

    def _idle_sentence(self) -> str:
        one = len(self.gpus) == 1
        who = _name(self.gpus[0], 0) if one else "each of %d GPUs" % len(self.gpus)
        absent = all(self._absent)
        at = "" if absent and self._most[0] >= MIN_UTILIZATION else "at %.0f %% utilization and " % self._most[0]
        return "%s stayed %swithin %.0f MiB of its memory before the run%s, for %g s" % (
            who, at, max(1.0, self._most[1]), " and had no process of this run" if absent else "", self.grace,
        )  # fmt: skip

    # -- the file ------------------------------------------------------------------

    def _say(self, verdict: str, detail: str, cause: str = "") -> None:
        self.verdict, self.detail, self.cause = verdict, detail, cause
        self._dirty = True

    def _save(self) -> None:
        """Write what we know; with a full disk try again at the next tick."""
        value = {
            "schema": SCHEMA, "verdict": self.verdict, "detail": self.detail, "cause": self.cause, "t": clock.wall(),
            "state": {
                "began": self.began, "watched": self.watched, "doubt": self.doubt, "most": self._most,
                "gpus": [
                    [gpu.get("uuid"), self.baselines[at], self._shared[at], self.busy[at]]
                    for at, gpu in enumerate(self.gpus)
                ],
            },
        }  # fmt: skip
        try:
            write_json(self.path, value)
        except OSError:
            return
        self._dirty, self._noted = False, self.watched

    def _resume(self) -> bool:
        """Go on where a killed sampler of this run stopped; whether there was one."""
        found = read_truth(self.path)
        state = found.get("state")
        if not isinstance(state, dict):
            return False
        try:
            known = {row[0]: row for row in state["gpus"]}
            for at, gpu in enumerate(self.gpus):
                row = known.get(gpu.get("uuid"))
                # Today's memory is no baseline: the run may hold some of it.
                self.baselines[at] = row[1] if row else None
                self._shared[at] = bool(row and row[2])
                self.busy[at] = row[3] if row and len(row) > 3 else None
            self.began, self.watched, self._most = state["began"], state["watched"], list(state["most"])
            self.doubt = state["doubt"] or self.doubt
            self.verdict, self.detail, self.cause = found["verdict"], found["detail"], found["cause"]
        except (KeyError, TypeError, IndexError):
            self.doubt = "%s is damaged" % os.path.basename(self.path)
            return False
        return True


def for_run(
    folder: str,
    devices: Sequence[str],
    gpus: Sequence[Mapping[str, Any]],
    baselines: Sequence[Optional[float]],
    every: float,
    note: str = "",
    busy: Sequence[Optional[float]] = (),
) -> Optional[GpuUsageCheck]:
    """The truth of the run in `folder`; ``None`` for a run that owns no GPU, and where no run is (a monitor).

    To be made when the baselines were just read, before the supervisor is told to go on.

    Parameters
    ----------
    devices
        UUIDs that the run was given.
    note
        Why some of them cannot be read.
    busy
        Utilization of each before the run.
    """
    if not devices:
        return None
    try:
        job = read_json(os.path.join(folder, JOB))
        state = read_state(folder) or {}
    except (OSError, AgentError):
        job, state = {}, {}
    if job is None:
        return None
    grace = job.get("gpu_grace")
    if not isinstance(grace, (int, float)):
        grace = DEFAULT_GPU_GRACE
    if state.get("rank"):  # it did not wait for us: what is on the devices now may be its own
        baselines, busy = [None] * len(gpus), ()
    missing = "" if len(gpus) >= len(devices) else note or "%d of %d GPUs cannot be read" % (
        len(devices) - len(gpus), len(devices),
    )  # fmt: skip
    return GpuUsageCheck(folder, gpus, grace, baselines, every, missing, busy=busy)


def read_truth(path: str) -> Dict[str, Any]:
    """What a truth file says; empty while there is none."""
    try:
        return read_json(path) or {}
    except (OSError, AgentError):
        return {}


def _value(rows: Sequence[Reading], at: int, key: str) -> Optional[float]:
    return rows[at].get(key) if at < len(rows) else None


def _busy(rows: Sequence[Reading], at: int) -> Optional[float]:
    """The higher of utilization and its peak."""
    known = [value for value in (_value(rows, at, "util"), _value(rows, at, "peak")) if value is not None]
    return max(known, default=None)


def _name(gpu: Mapping[str, Any], at: int) -> str:
    return gpu_name({"index": at, **gpu})
