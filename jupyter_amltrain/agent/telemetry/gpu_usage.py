"""GPU usage check: whether a run used the GPUs that it owns. Used, not used, or cannot tell."""

from __future__ import annotations

import os
from typing import Any, Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from .. import protocol
from ..processes import LINUX
from ..protocol import DEFAULT_GPU_GRACE, GPU_USAGE, JOB, SCHEMA, AgentError, read_json, read_state, write_json
from .gpu_names import gpu_name

VISIBLE = "CUDA_VISIBLE_DEVICES"

#: Processes that are examined: the first ones of a run with many.
MAX_PROCESSES = 64

#: Libraries that show CUDA in a process: torch's part, the runtime, the driver.
_CUDA = ("libtorch_cuda", "libcudart", "libcuda.so", "libcublas", "libcudnn", "xla_cuda_plugin")

#: Framework -> libraries that show that it was imported, and how to get one with CUDA.
_FRAMEWORKS = (
    (
        "torch",
        ("libtorch_cpu",),
        "pip install torch from the CUDA index (https://pytorch.org/get-started)",
    ),
    (
        "tensorflow",
        ("libtensorflow_framework", "libtensorflow_cc", "_pywrap_tensorflow_internal"),
        "pip install 'tensorflow[and-cuda]'",
    ),
    ("jax", ("xla_extension", "jaxlib/_jax", "libjax_common"), "pip install -U 'jax[cuda12]'"),
)

_MOVE = {
    "torch": "nothing was moved to the GPU: model.to('cuda'), batch.to('cuda')",
    "tensorflow": "tensorflow has CUDA libraries and used no GPU: see tf.config.list_physical_devices('GPU')",
    "jax": "jax has CUDA libraries and used no GPU: see jax.devices()",
}

COMMON_CAUSES = (
    "usually one of these: a CPU-only wheel of the framework, no .to('cuda') for model and batches,"
    " or a CUDA_VISIBLE_DEVICES that hides the GPU"
)


class _ProcessInfo(NamedTuple):
    """Libraries and variable of one process."""

    pid: int
    libraries: str  #: names of mapped files
    visible: Optional[str]  #: CUDA_VISIBLE_DEVICES at its start


def likely_cause(pids: Collection[int], gpus: Sequence[Mapping[str, Any]], proc: str = "/proc") -> str:
    """Return the likely cause and what to do, one sentence.

    Parameters
    ----------
    pids
        Processes of the run.
    gpus
        Devices of the run: ``index`` and ``uuid``.
    """
    if not LINUX:
        return COMMON_CAUSES
    seen = [_inspect(pid, proc) for pid in sorted(pids)[:MAX_PROCESSES]]
    frameworks = {pid: name for pid, name in ((one.pid, _framework(one.libraries)) for one in seen) if name}
    # Where a framework is loaded its processes matter, not the shell that started them.
    judged = [one for one in seen if one.pid in frameworks] or seen
    hidden = [text for text in (_hides(one.visible, gpus) for one in judged) if text]
    if hidden and len(hidden) == len(judged):
        return hidden[0]
    for name, _, cure in _FRAMEWORKS:
        users = [one for one in judged if frameworks.get(one.pid) == name]
        if not users:
            continue
        if any(library in one.libraries for one in users for library in _CUDA):
            return _MOVE[name]
        return "%s is installed without CUDA (CPU-only wheel): %s" % (name, cure)
    if any(library in one.libraries for one in judged for library in _CUDA):
        return _MOVE["torch"]
    return hidden[0] if hidden else COMMON_CAUSES


def _framework(libraries: str) -> str:
    for name, signs, _ in _FRAMEWORKS:
        if any(sign in libraries for sign in signs):
            return name
    return ""


def _hides(visible: Optional[str], gpus: Sequence[Mapping[str, Any]]) -> str:
    """Return how a value of the variable hides the run's GPUs; empty if it does not."""
    if visible is None:
        return ""
    prefix = "the script's process was started with %s=" % VISIBLE
    if visible.strip() in ("", "-1"):
        return "%s%r, which hides every GPU: do not set the variable" % (prefix, visible.strip())
    names = [str(gpu.get("uuid") or "") for gpu in gpus]
    indices: Set[str] = {str(gpu.get("index")) for gpu in gpus}
    for part in (text.strip() for text in visible.split(",")):
        # CUDA accepts the beginning of a UUID as well.
        if part and (part in indices or any(name.startswith(part) for name in names)):
            return ""
    assigned = ",".join(names)
    return "%s%r and not the assigned %s: do not set the variable" % (prefix, visible[:120], assigned[:120])


def _inspect(pid: int, proc: str) -> _ProcessInfo:
    libraries = set()
    try:
        with open(os.path.join(proc, str(pid), "maps"), "rb") as file:
            for line in file:
                at = line.find(b"/")
                if at > 0:
                    libraries.add(line[at:].rstrip(b"\n"))
    except OSError:  # another user's process, or it has ended
        pass
    visible: Optional[str] = None
    try:
        with open(os.path.join(proc, str(pid), "environ"), "rb") as file:
            pairs = [item.partition(b"=") for item in file.read().split(b"\0")]
        values = [value for name, _, value in pairs if name == VISIBLE.encode()]
        visible = values[0].decode("utf-8", "replace") if values else None
    except OSError:  # it has ended, or belongs to another user
        pass
    return _ProcessInfo(pid, b"\n".join(sorted(libraries)).decode("utf-8", "replace"), visible)


USED, NOT_USED, CANNOT_TELL = "used", "not used", "cannot tell"

#: Below this utilization (percent) a device computes nothing.
MIN_UTILIZATION = 1.0

#: Percentage points over the utilization before the run that prove use, and the consecutive ticks that they need.
RISE, RISE_TICKS = 10.0, 2

#: Seconds in which a driver that was just initialized may cause utilization itself.
SETTLE_S = 10.0

#: MiB over the memory before the run that prove nothing: less than any CUDA context takes.
MEMORY_SLACK_MIB = 64.0

#: A pause between two ticks longer than this many periods, and seconds, is a gap.
HOLE_PERIODS, HOLE_SECONDS = 5.0, 5.0

#: Seconds between saves of the time of the last tick; less than a gap.
NOTE_INTERVAL_S = 4.0

Reading = Mapping[str, Optional[float]]


class GpuUsageCheck:
    """The verdict on one run on one machine, stored in ``telemetry/truth-<node>.json``.

    Parameters
    ----------
    folder
        The run folder.
    gpus
        The run's devices: ``index``, ``uuid`` of each, as in the telemetry header.
    grace
        Seconds from the first process of the run to the earliest *not used*.
    baselines
        MiB on each device before the first rank started; ``None`` if unknown.
        Values stored by an earlier sampler of the run take precedence.
    every
        Seconds between ticks.
    missing
        Reason why some assigned device is not read; empty when all are read.
    why
        Function that returns the likely cause: ``why(pids, gpus)``.
    node
        Number of the machine within the run.
    busy
        Utilization (percent) of each device before the first rank started, like `baselines`.
    """

    def __init__(
        self,
        folder: str,
        gpus: Sequence[Mapping[str, Any]],
        grace: float,
        baselines: Sequence[Optional[float]],
        every: float = 1.0,
        missing: str = "",
        why: Callable[[Collection[int], Sequence[Mapping[str, Any]]], str] = likely_cause,
        node: int = 0,
        busy: Sequence[Optional[float]] = (),
    ) -> None:
        self.path = os.path.join(folder, GPU_USAGE % node)
        self.gpus, self.grace, self.missing = gpus, grace, missing
        self.hole = max(HOLE_PERIODS * every, HOLE_SECONDS)
        self.find_cause = why
        self.verdict = self.detail = self.cause = ""
        self.began: Optional[float] = None  #: first process of the run, monotonic
        self.watched: Optional[float] = None  #: last tick, monotonic
        self.doubt = missing or ("" if gpus else "no GPU could be read")
        self.baselines: List[Optional[float]] = list(baselines) + [None] * (len(gpus) - len(baselines))
        self.busy: List[Optional[float]] = list(busy) + [None] * (len(gpus) - len(busy))
        self._ticks_above = [0] * len(gpus)
        self._above_since = [0.0] * len(gpus)
        self._absent = [False] * len(gpus)  # the complete list of processes has none of the run's
        self._most = [0.0, 0.0]  # highest utilization by anybody, highest rise of memory
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
            Seconds of the monotonic clock (:func:`.protocol.mono`).
        readings
            ``{"util", "peak", "memory"}`` of each device: percent, percent, MiB; ``None`` for unknown.
        slow
            ``{"mine", "others"}``: MiB of the run's own and of other processes; ``None`` for
            unknown. ``"own": True``: a process of the run is listed whose memory is unknown.
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
            self._doubt("no samples were read for %.0f s" % (t - (self.watched or t)))
        self.watched = t
        proof = self._find_proof(t, readings, slow)
        if proof:
            sentence, since = proof
            self._decide(USED, "%s, first after %.0f s" % (sentence, since - self.began))
        elif not self.verdict and t - self.began >= self.grace:
            if self.doubt:
                self._decide(CANNOT_TELL, self.doubt)
            else:
                self._decide(NOT_USED, self._idle_sentence(), self.find_cause(list(members), self.gpus))
        elif not self.verdict and t - (self._noted or 0.0) >= NOTE_INTERVAL_S:
            self._dirty = True
        if self._dirty:
            self._save()

    def share(self, at: int) -> None:
        """Record that other users compute on a GPU, also after the verdict *used*."""
        if self._shared[at]:
            return
        self._share(at)
        if self.verdict == USED:
            self.detail = "%s; others compute on %s too" % (self.detail, gpu_name({"index": at, **self.gpus[at]}))
            self._save()

    def close(self, only_copied: bool = False) -> None:
        """End the check with the run: without proof so far, the verdict is *cannot tell*.

        Parameters
        ----------
        only_copied
            Whether every used GPU copied data and computed nothing.
        """
        if not self.verdict:
            if self.began is None:
                reason = "the run ended before its processes were seen"
            else:
                seconds = (self.watched or self.began) - self.began
                reason = "the run ended after %.0f s, before its grace time of %g s" % (seconds, self.grace)
            self._decide(CANNOT_TELL, "; ".join(text for text in (reason, self.doubt) if text))
        elif self.verdict == USED and only_copied:
            self._decide(USED, self.detail + "; it copied data, and computed nothing")
        if self._dirty:
            self._save()

    def _before(self, readings: Sequence[Reading], slow: Sequence[Reading]) -> None:
        """Take a tick before the first rank: processes and memory on the GPUs are not the run's."""
        for at in range(len(self.gpus)):
            memory = _value(readings, at, "memory")
            if self.baselines[at] is None and memory is not None:
                self.baselines[at], self._dirty = memory, True
            busy = _busy(readings, at)
            if busy is not None and busy != self.busy[at]:
                # A display changes from tick to tick; a driver that starts calms down.
                before = self.busy[at]
                self.busy[at] = busy if before is None or before >= RISE else max(before, min(busy, RISE))
                self._dirty = True
            if _value(slow, at, "others"):
                self._share(at)
        if self._dirty:
            self._save()

    def _find_proof(
        self, t: float, readings: Sequence[Reading], slow: Sequence[Reading]
    ) -> Optional[Tuple[str, float]]:  # fmt: skip
        """Return what proves use now, and since when; record doubts that rule out *not used*."""
        for at, gpu in enumerate(self.gpus):
            name = _name(gpu, at)
            mine, others = _value(slow, at, "mine"), _value(slow, at, "others")
            if mine or (at < len(slow) and slow[at].get("own")):
                return "%s has a process of this run" % name + (" with %.0f MiB" % mine if mine else ""), t
            if others:
                self._share(at)
            # An instance may list no process although it is in use.
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
                self._doubt("%s does not report its utilization" % name)
            elif memory is None:
                self._doubt("%s does not report its memory" % name)
            elif rise is None:
                self._doubt("the memory of %s before the run is not known" % name)
            else:
                self._most[1] = max(self._most[1], abs(rise))
                if rise < -MEMORY_SLACK_MIB:  # another process left: the rest of the change may be the run's
                    self._doubt("%s lost %.0f MiB meanwhile, so other processes used it" % (name, -rise))
        return None

    def _rises(self, t: float, at: int, busy: Optional[float], flat: bool) -> bool:
        """Return whether utilization proves use; record a doubt if it might.

        Parameters
        ----------
        flat
            Whether the memory is known to be the same as before the run.
        """
        before, began = self.busy[at], t if self.began is None else self.began
        self._most[0] = max(self._most[0], busy or 0.0)
        if busy is None or self._absent[at]:
            self._ticks_above[at] = 0
            return False
        if before is not None and before >= RISE and busy < before:
            self.busy[at] = before = busy  # it was the driver's start, or a process that has left
            self._dirty = True
        if t - began < SETTLE_S and (flat or before is None or before >= RISE):
            # The run's own use takes memory, too; where memory is unknown, the use continues after this time.
            self._ticks_above[at] = 0
            return False
        name, usual = _name(self.gpus[at], at), before or 0.0
        if usual >= RISE:
            self._doubt("%s was already busy before the run (%.0f %%)" % (name, usual))
        if busy - usual < RISE:
            self._ticks_above[at] = 0
            if busy - usual >= MIN_UTILIZATION:
                self._doubt("%s was at %.0f %% utilization, too little to attribute it" % (name, busy))
            return False
        self._ticks_above[at] += 1
        if self._ticks_above[at] == 1:
            self._above_since[at] = t
            self._doubt("%s was at %.0f %% utilization for a moment" % (name, busy))
        return self._ticks_above[at] >= RISE_TICKS

    def _share(self, at: int) -> None:
        # Permanent: readings lag behind a process that leaves, and its memory was in the baseline.
        if not self._shared[at]:
            self._shared[at], self._dirty = True, True
        self._doubt("others compute on %s too" % _name(self.gpus[at], at))

    def _doubt(self, reason: str) -> None:
        if not self.doubt:
            self.doubt, self._dirty = reason, True

    def _idle_sentence(self) -> str:
        one = len(self.gpus) == 1
        subject = _name(self.gpus[0], 0) if one else "each of %d GPUs" % len(self.gpus)
        absent = " and had no process of this run" if all(self._absent) else ""
        # The charts show the utilization of all processes; here the run's own is meant.
        others = self._most[0] >= MIN_UTILIZATION
        at = "" if others else "at 0 % utilization and "
        most = "; its utilization, up to %.0f %%, is not the run's" % self._most[0] if others else ""
        return "%s stayed %swithin %.0f MiB of its memory before the run%s, for %g s%s" % (
            subject, at, max(1.0, self._most[1]), absent, self.grace, most,
        )  # fmt: skip

    # -- the file ------------------------------------------------------------------

    def _decide(self, verdict: str, detail: str, cause: str = "") -> None:
        self.verdict, self.detail, self.cause = verdict, detail, cause
        self._dirty = True

    def _save(self) -> None:
        """Write the file; with a full disk, the next tick tries again."""
        value = {
            "schema": SCHEMA, "verdict": self.verdict, "detail": self.detail, "cause": self.cause, "t": protocol.wall(),
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
        """Continue the check of an earlier sampler of this run; return whether there was one."""
        stored = read_verdict(self.path)
        state = stored.get("state")
        if not isinstance(state, dict):
            return False
        try:
            known = {row[0]: row for row in state["gpus"]}
            for at, gpu in enumerate(self.gpus):
                row = known.get(gpu.get("uuid"))
                # The current memory is no baseline: the run may hold some of it.
                self.baselines[at] = row[1] if row else None
                self._shared[at] = bool(row and row[2])
                self.busy[at] = row[3] if row and len(row) > 3 else None
            self.began, self.watched, self._most = state["began"], state["watched"], list(state["most"])
            self.doubt = state["doubt"] or self.doubt
            self.verdict, self.detail, self.cause = stored["verdict"], stored["detail"], stored["cause"]
        except (KeyError, TypeError, IndexError):
            self.doubt = "%s is damaged" % os.path.basename(self.path)
            return False
        return True


def usage_check_of_run(
    folder: str,
    devices: Sequence[str],
    gpus: Sequence[Mapping[str, Any]],
    baselines: Sequence[Optional[float]],
    every: float,
    note: str = "",
    busy: Sequence[Optional[float]] = (),
) -> Optional[GpuUsageCheck]:
    """Return the check of the run in `folder`; ``None`` for a run without GPUs, and for a monitor.

    Call it right after the baselines were read, before the supervisor goes on.

    Parameters
    ----------
    devices
        UUIDs of the run's GPUs.
    note
        Reason why some of them cannot be read.
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
    if state.get("rank"):  # the job has started: memory on the devices may be its own
        baselines, busy = [None] * len(gpus), ()
    missing = "" if len(gpus) >= len(devices) else note or "%d of %d GPUs cannot be read" % (
        len(devices) - len(gpus), len(devices),
    )  # fmt: skip
    return GpuUsageCheck(folder, gpus, grace, baselines, every, missing, busy=busy)


def read_verdict(path: str) -> Dict[str, Any]:
    """Return the content of a truth file; empty if there is none."""
    try:
        return read_json(path) or {}
    except (OSError, AgentError):
        return {}


def _value(rows: Sequence[Reading], at: int, key: str) -> Optional[float]:
    return rows[at].get(key) if at < len(rows) else None


def _busy(rows: Sequence[Reading], at: int) -> Optional[float]:
    """Return the higher of utilization and its peak."""
    known = [value for value in (_value(rows, at, "util"), _value(rows, at, "peak")) if value is not None]
    return max(known, default=None)


def _name(gpu: Mapping[str, Any], at: int) -> str:
    return gpu_name({"index": at, **gpu})


#: Seconds that a run waits for its sampler's first reading of the GPUs: the state before the job starts.
READY_TIMEOUT_S = 3.0

#: Seconds between checks of a supervisor: also for a cancel whose signal did not reach it.
CHECK_INTERVAL_S = 2.0


class GpuUsageGuard:
    """Reads the verdict on one run for its supervisor.

    Parameters
    ----------
    folder
        The run folder.
    devices
        Devices of the run; a run without GPUs has no verdict.
    job
        The job: with ``require_gpu`` ``stop`` the verdict *not used* ends it, after ``gpu_grace`` seconds.
    number
        Number of the machine within the run.

    Attributes
    ----------
    period
        Seconds between checks.
    """

    def __init__(self, folder: str, devices: List[str], job: Mapping[str, Any], number: int = 0) -> None:
        self.number = number
        self.path = os.path.join(folder, GPU_USAGE % number)
        self.devices, self.require = devices, job.get("require_gpu") or ""
        self.period = CHECK_INTERVAL_S
        if devices:
            self.period = min(CHECK_INTERVAL_S, max(0.05, (job.get("gpu_grace") or DEFAULT_GPU_GRACE) / 4))
        self.verdict: Dict[str, str] = {}
        self._seen: Optional[Tuple[int, int]] = None

    def update(self, state: Dict[str, Any]) -> bool:
        """Update ``state["truth"]``; return whether it changed."""
        if not self.devices:
            return False
        try:
            now = os.stat(self.path)
        except OSError:
            return False
        if self._seen == (now.st_mtime_ns, now.st_ino):
            return False
        self._seen = (now.st_mtime_ns, now.st_ino)
        stored = read_verdict(self.path)
        truth = {key: str(stored.get(key) or "") for key in ("verdict", "detail", "cause")}
        if not truth["verdict"] or truth == self.verdict:
            return False
        state["truth"] = self.verdict = truth
        return True

    def should_stop(self) -> bool:
        """Return whether the run is to be stopped because of its verdict."""
        return self.require == "stop" and self.verdict.get("verdict") == NOT_USED

    def close(self, state: Dict[str, Any]) -> None:
        """Set the verdict *cannot tell* if the sampler has ended without one."""
        self.update(state)
        if self.devices and not self.verdict:
            reason = "the sampler ended before it reached a verdict"
            state["truth"] = self.verdict = {"verdict": CANNOT_TELL, "detail": reason, "cause": ""}


class ReadyPipe:
    """The pipe on which a sampler signals that it has read the devices.

    Attributes
    ----------
    reader, writer
        Ends of the pipe; the writer is the sampler's.
    until
        End of the wait, monotonic.
    """

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.until = protocol.mono() + READY_TIMEOUT_S

    def received(self) -> bool:
        """Return whether the byte has arrived; call it when the reader is readable."""
        return os.read(self.reader, 1) == b"r"

    def close(self) -> None:
        """Close the reader."""
        os.close(self.reader)
