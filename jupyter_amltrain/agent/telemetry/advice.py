"""Advice on a run's GPUs: what they waited for, from evidence in the ticks; no sentence without it.

Counted from the first use of a GPU. A framework that compiles for a minute leaves one long pause, which is evidence
of nothing: data that comes too late lets the GPU fall idle again and again.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

#: Percent of utilization under which a GPU is idle, and from which it is busy.
IDLE_PERCENT, BUSY_PERCENT = 10, 50.0

#: Percent of SM activity up to which a busy GPU only copies.
COPY_SM_PERCENT = 3.0

#: Percent of the peak within a tick that shows a burst of work.
BURST_PERCENT = 70.0

#: Seconds of use without which there is no advice, and times that a GPU that waits has fallen idle at least.
MIN_SECONDS, MIN_FALLS = 10.0, 4

#: Shares of the time since the first use: copying, waiting and idle from which they are worth a sentence; and time
#: with real work up to which all of the work counts as small.
COPY_SHARE, WAIT_SHARE, SMALL_SHARE, WORK_SHARE = 0.3, 0.2, 0.9, 0.02

#: Percent of one core: one process that works without pause, and a share of all cores that is all.
ONE_CORE, ALL_CORES = (80.0, 140.0), 0.8


class Evidence:
    """Sums over the ticks of one GPU since its first use, of constant size; seconds unless said otherwise."""

    def __init__(self, state: Optional[Mapping[str, Any]] = None) -> None:
        self.seconds = 0.0
        self.idle = 0.0
        self.work = 0.0  # busy, or with a burst within the tick
        self.copying = 0.0  # busy, and no multiprocessor worked
        self.computing = 0.0  # some multiprocessor worked
        self.util = 0.0  # percent x seconds
        self.waiting = 0.0  # idle, or idle between bursts within a tick
        self.waiting_cpu = 0.0  # percent of one core x seconds, while waiting
        self.waiting_known = 0.0  # seconds of waiting with a CPU reading
        self.falls = 0  # times that it fell idle
        self.was_idle = True
        if state:
            self.__dict__.update(state)

    def state(self) -> Dict[str, Any]:
        """Return the values for a file: the argument of a new object."""
        return dict(self.__dict__)

    def add(
        self,
        seconds: float,
        util: Optional[float],
        peak: Optional[float],
        sm: Optional[float],
        cpu: Optional[float],
        before: float = 0.0,
    ) -> None:
        """Add a tick.

        Parameters
        ----------
        seconds
            Time since the tick before.
        util, peak, sm
            Utilization, its peak within the tick, and SM activity, percent; ``None``: unknown.
        cpu
            CPU of the run's processes, percent of one core.
        before
            Utilization before the run, which is not the run's.
        """
        if util is None or (not self.seconds and util < 1 + before):
            return
        burst = (peak or 0.0) >= BURST_PERCENT
        is_idle = util < IDLE_PERCENT
        self.seconds += seconds
        self.util += util * seconds
        self.idle += seconds if is_idle else 0.0
        self.work += seconds if burst or util >= BUSY_PERCENT else 0.0
        if sm is not None:
            self.copying += seconds if util >= BUSY_PERCENT and sm < COPY_SM_PERCENT else 0.0
            self.computing += seconds if sm >= COPY_SM_PERCENT else 0.0
        waited = is_idle or (burst and util < BUSY_PERCENT)
        if waited:
            part = seconds * (1 - util / 100)
            self.waiting += part
            if cpu is not None:
                self.waiting_known += part
                self.waiting_cpu += cpu * part
        if waited and (burst or not self.was_idle):
            self.falls += 1
        self.was_idle = is_idle

    @property
    def only_copied(self) -> bool:
        """Whether the GPU was busy with copies, and never computed."""
        return self.copying > 0 and not self.computing


class _Total(NamedTuple):
    """Evidence of all GPUs of a run: shares of the time since the first use, and percent."""

    copying: float
    idle: float
    work: float
    waiting: float
    util: float
    falls: int
    cpu: Optional[float]


def advice(found: Sequence[Evidence], cpus: Optional[int]) -> str:
    """Return what the GPUs waited for and what to do, one sentence with the measurements; empty without evidence.

    Parameters
    ----------
    found
        Evidence of each GPU of the run.
    cpus
        Cores that the run could use.
    """
    used = [one for one in found if one.seconds >= MIN_SECONDS]
    if not used:
        return ""
    total = _total(used)
    gpus = "The GPU was" if len(used) == 1 else "The GPUs were"
    if total.copying >= COPY_SHARE:
        return (
            "%s copying for %.0f %% of the time, and computed nothing then. Keep the data on the GPU, or copy it while"
            " the GPU computes (pin_memory, non_blocking)." % (gpus, 100 * total.copying)
        )
    is_small = not total.work or (total.work <= WORK_SHARE and total.falls >= MIN_FALLS)
    if total.idle >= SMALL_SHARE and is_small:
        return (
            "%s used, but idle %.0f %% of the time: the work is too small for %s. Larger batches use more of it, and"
            " the processor may be as fast." % (gpus, min(99.0, 100 - total.util), "it" if len(used) == 1 else "them")
        )
    if total.waiting < WAIT_SHARE or total.falls < MIN_FALLS or total.cpu is None:
        return ""
    waited = "%s idle for %.0f %% of the time, again and again" % (gpus, 100 * total.waiting)
    if cpus and total.cpu >= 100 * ALL_CORES * cpus:
        text = ", while the run's processes used %.1f of %d CPU cores: the CPU seems to be the bottleneck."
        return waited + text % (total.cpu / 100, cpus) + " Prepare the data beforehand, or on the GPU."
    if ONE_CORE[0] <= total.cpu <= ONE_CORE[1]:
        text = ", while one CPU core was busy: one process seems to prepare the data."
        return waited + text + " Give the loader workers (num_workers)."
    return ""


def _total(used: Sequence[Evidence]) -> _Total:
    seconds = sum(one.seconds for one in used)
    known = sum(one.waiting_known for one in used)
    return _Total(
        copying=sum(one.copying for one in used) / seconds,
        idle=sum(one.idle for one in used) / seconds,
        work=sum(one.work for one in used) / seconds,
        waiting=sum(one.waiting for one in used) / seconds,
        util=sum(one.util for one in used) / seconds,
        falls=max(one.falls for one in used),
        cpu=sum(one.waiting_cpu for one in used) / known if known else None,
    )
