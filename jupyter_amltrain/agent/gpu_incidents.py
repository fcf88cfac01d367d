"""``telemetry/gpu-incidents-<node>.json``: what went wrong with the GPUs of a run, and when.

Xid errors, GPUs that were lost, memory errors and replaced memory rows or pages since the sampler
began, and the processes on them. The file appears with the first of these; the supervisor
reads it at the end of the run.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Callable, Collection, Dict, List, Sequence, Tuple

from . import clock
from .gpu_devices import OK, TOO_SMALL
from .gpu_events import GpuEvents
from .gpu_names import gpu_name
from .gpu_readings import GpuReadings
from .process_names import command_of, user_of
from .protocol import SCHEMA, AgentError, read_json, write_json
from .xids import in_words

GPU_INCIDENTS = "telemetry/gpu-incidents-%d.json"
XID, LOST = "xid", "lost"
#: Counters of a GPU: key, and what a rise of it is in words (one, several).
COUNTERS: Tuple[Tuple[str, str, str], ...] = (
    ("ecc_uncorrectable", "uncorrectable memory error", "uncorrectable memory errors"),
    ("ecc_correctable", "correctable memory error", "correctable memory errors"),
    ("rows_remapped", "replaced memory row", "replaced memory rows"),
    ("remap_failures", "memory row that could not be replaced", "memory rows that could not be replaced"),
    ("pages_retired", "retired memory page", "retired memory pages"),
)
#: Seconds in which the counters of every GPU are asked once, and until a function that was refused is asked again.
COUNTERS_EVERY_S, REFUSED_S = 10.0, 60.0
#: Kinds of errors that are kept; the same error of the same GPU is one.
MAX_ERRORS = 64
#: Seconds after which the same error of the same GPU gets another note.
NOTE_EVERY_S = 60.0
#: Processes of others that are remembered, and the change of a memory (share) that is not written down.
MAX_PROCESSES, SAME_SHARE = 32, 0.05


class GpuIncidents:
    """The record of one sampler, and of those before it in the same run.

    Parameters
    ----------
    folder
        Folder that holds ``telemetry``.
    number
        Of the machine within the run.

    Attributes
    ----------
    errors
        ``{"gpu": index, "kind", "number", "count", "first", "last" (monotonic), "t" (unix seconds of the
        first), "shared"}`` each; `shared`: others had processes on the GPU at that time.
    """

    def __init__(self, folder: str, readings: GpuReadings, number: int = 0) -> None:
        self.path = os.path.join(folder, GPU_INCIDENTS % number)
        self.readings = readings
        self.events = GpuEvents(readings)
        self.errors: List[Dict[str, Any]] = []
        self._base: Dict[str, Dict[str, int]] = {}
        self._rises: Dict[str, Dict[str, int]] = {}
        self._processes: List[Dict[str, Any]] = []
        self._listed: Sequence[Sequence[Any]] = []
        self._shared: Collection[int] = frozenset()
        self._lost = [readings.handle(i) is None for i in range(len(readings.gpus))]
        self._refused: Dict[Tuple[int, str], float] = {}
        self._due, self._turn = clock.mono(), 0
        self._noted: Dict[Tuple[int, str, int], float] = {}
        self._dirty = False
        self._resume()
        for i in range(len(readings.gpus)):
            self._count(i)
        self.before_reading()  # registers

    # -- ticks ---------------------------------------------------------------------

    def before_reading(self) -> None:
        """Take the driver's reports; before the GPUs are read, which may initialize the driver anew."""
        for event in self.events.take():
            self._add(event.gpu, XID, event.number)

    def after_reading(self, processes: Sequence[Sequence[Any]] = ()) -> None:
        """See which GPUs were lost, ask the counters of those whose turn it is, and write what is new.

        Parameters
        ----------
        processes
            ``[GPU's index, pid, owner, MiB, command, user]`` each, as they are listed now.
        """
        gpus = self.readings.gpus
        self._others(processes)
        for i in range(len(gpus)):
            lost = self.readings.handle(i) is None
            if lost and not self._lost[i]:
                self._add(i, LOST, 0)
            self._lost[i] = lost
        if gpus and clock.mono() >= self._due:
            self._count(self._turn)
            self._turn = (self._turn + 1) % len(gpus)
            self._due = clock.mono() + max(0.0, COUNTERS_EVERY_S / len(gpus))
        if self._dirty:
            self._save()

    def close(self) -> None:
        """Take what came since the last tick, and the counters once more."""
        self.before_reading()
        for i in range(len(self.readings.gpus)):
            self._count(i)
        if self._dirty:
            self._save()

    def figures(self, i: int) -> Dict[str, Any]:
        """What the summary says of one GPU: ``xids`` (numbers, in one text) and each counter that has risen."""
        gpu = self.readings.gpus[i]
        numbers = [str(one["number"]) for one in self.errors if one["gpu"] == gpu["index"] and one["kind"] == XID]
        found: Dict[str, Any] = {"xids": ", ".join(numbers)} if numbers else {}
        found.update(self._rises.get(gpu["uuid"], {}))
        return found

    # -- errors --------------------------------------------------------------------

    def _add(self, i: int, kind: str, number: int) -> None:
        now, index = clock.mono(), int(self.readings.gpus[i]["index"])
        key = (index, kind, number)
        known = next((one for one in self.errors if (one["gpu"], one["kind"], one["number"]) == key), None)
        if known is not None:
            known["count"] += 1
            known["last"] = now
        elif len(self.errors) < MAX_ERRORS:
            self.errors.append(
                {
                    "gpu": index, "kind": kind, "number": number, "count": 1, "first": now, "last": now,
                    "t": round(clock.wall(), 3), "shared": index in self._shared,
                }
            )  # fmt: skip
        self._dirty = True
        if kind == XID and now - self._noted.get(key, -NOTE_EVERY_S) >= NOTE_EVERY_S and len(self._noted) < MAX_ERRORS:
            self._noted[key] = now
            self.readings.notes.append("%s reported %s" % (gpu_name(self.readings.gpus[i]), in_words(number)))

    def _count(self, i: int) -> None:
        """Ask the counters of one GPU, and note what has risen since the run began."""
        gpu = self.readings.gpus[i]
        handle, driver = self.readings.handle(i), self.readings.driver
        if handle is None or driver is None or gpu.get("mig"):
            return
        base = self._base.setdefault(gpu["uuid"], {})
        rises = self._rises.setdefault(gpu["uuid"], {})
        for key, value in self._counters(i, handle, driver.function).items():
            if key not in base or value < base[key]:  # a counter that was reset counts anew
                base[key] = value - rises.get(key, 0)
            rise = value - base[key]
            if rise > rises.get(key, 0):
                more = rise - rises.get(key, 0)
                rises[key] = rise
                self._add(i, key, 0)
                word = next(names[min(more, 2)] for names in COUNTERS if names[0] == key)
                if key != "ecc_correctable" or rise == more:  # they may come by the thousand: one note
                    self.readings.notes.append("%s: %d %s" % (gpu_name(gpu), more, word))

    def _counters(self, i: int, handle: Any, function: Callable[..., Any]) -> Dict[str, int]:
        found: Dict[str, int] = {}
        wide, count = ctypes.c_ulonglong(0), ctypes.c_uint(0)
        for key, kind in (("ecc_uncorrectable", 1), ("ecc_correctable", 0)):
            wide.value = 0
            sort: List[Any] = [ctypes.c_uint(kind), ctypes.c_uint(0), ctypes.byref(wide)]  # since the driver was loaded
            if self._ask(i, function, "nvmlDeviceGetTotalEccErrors", key, handle, *sort) == OK:
                found[key] = int(wide.value)
        rows = [ctypes.c_uint(0) for _ in range(4)]
        into = [ctypes.byref(number) for number in rows]
        if self._ask(i, function, "nvmlDeviceGetRemappedRows", "rows_remapped", handle, *into) == OK:
            found["rows_remapped"] = int(rows[0].value + rows[1].value)
            found["remap_failures"] = int(bool(rows[3].value))
        pages, known = 0, False
        for cause in (0, 1):
            count.value = 0  # with no room for addresses it only counts
            key = "pages_retired.%d" % cause
            sort = [ctypes.c_uint(cause), ctypes.byref(count), None]
            if self._ask(i, function, "nvmlDeviceGetRetiredPages", key, handle, *sort) in (OK, TOO_SMALL):
                pages, known = pages + int(count.value), True
        if known:
            found["pages_retired"] = pages
        # All bits set is how some boards say that they cannot tell.
        return {key: value for key, value in found.items() if value < 0xFFFFFFFF}

    def _ask(self, i: int, function: Callable[..., Any], name: str, key: str, *args: Any) -> int:
        """Call a function unless it was refused a short while ago; its code."""
        if clock.mono() < self._refused.get((i, key), 0.0):
            return -1
        call = function(name)
        code = -1 if call is None else int(call(*args))
        if code not in (OK, TOO_SMALL):
            self._refused[(i, key)] = clock.mono() + REFUSED_S
        return code

    # -- whose processes were there -------------------------------------------------

    def _others(self, processes: Sequence[Sequence[Any]]) -> None:
        """Remember who is on the GPUs: by the end of the run they may be gone."""
        if processes == self._listed:
            return
        self._listed = processes
        listed = sorted(processes, key=lambda row: bool(row[2] == "mine"))[:MAX_PROCESSES]  # a stable order
        self._shared = frozenset(int(row[0]) for row in listed if row[2] != "mine")
        before = {(one["gpu"], one["pid"]): one for one in self._processes}
        now: List[Dict[str, Any]] = []
        for row in listed:
            index, pid, owner, memory, name, *more = row
            user = more[0] if more else ""
            known = before.get((index, pid)) or {}
            if owner == "mine":
                now.append({"gpu": index, "pid": pid, "memory": None, "owner": owner})
                continue
            translated = owner == "other"
            now.append(
                {
                    "gpu": index, "pid": pid, "memory": memory, "owner": owner,
                    "user": known.get("user") or user or (user_of(pid) if translated else ""),
                    "program": known.get("program") or (command_of(pid) or name if translated else name),
                }
            )  # fmt: skip
        # An error may name a process that has ended meanwhile: it is still known by its pid.
        here = {(one["gpu"], one["pid"]) for one in now}
        gone = [one for key, one in before.items() if key not in here and one["owner"] != "mine"]
        now += [dict(one, memory=None) for one in gone[: MAX_PROCESSES - len(here)]]
        changed = len(now) != len(self._processes) or any(
            (new["gpu"], new["pid"]) != (old["gpu"], old["pid"])
            or abs((new["memory"] or 0) - (old["memory"] or 0)) > SAME_SHARE * (old["memory"] or 0)
            for new, old in zip(now, self._processes)
        )
        if changed:
            self._processes, self._dirty = now, True

    # -- the file --------------------------------------------------------------------

    def _save(self) -> None:
        """Write what we know; with a full disk try again at the next tick."""
        value = {
            "schema": SCHEMA, "errors": self.errors, "processes": self._processes, "base": self._base,
            "rises": self._rises,
        }  # fmt: skip
        try:
            write_json(self.path, value)
        except OSError:
            return
        self._dirty = False

    def _resume(self) -> None:
        """Go on where a killed sampler of this run stopped; what a job wrote into the file is left out."""
        found = read_incidents(self.path)
        errors, base, rises = found.get("errors"), found.get("base"), found.get("rises")
        if isinstance(errors, list):
            self.errors = [one for one in errors if _is_error(one)][:MAX_ERRORS]
        if _is_counters(base) and _is_counters(rises):
            self._base, self._rises = dict(base or {}), dict(rises or {})


def _is_error(value: Any) -> bool:
    """Whether a value of the file is an error as we write it."""
    if not isinstance(value, dict):
        return False
    whole = all(isinstance(value.get(key), int) for key in ("gpu", "number", "count"))
    return whole and isinstance(value.get("kind"), str) and all(_is_time(value.get(key)) for key in ("first", "last"))


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < 1e12


def _is_counters(value: Any) -> bool:
    rows = list(value.values()) if isinstance(value, dict) else [None]
    return all(isinstance(row, dict) and all(isinstance(number, int) for number in row.values()) for row in rows)


def read_incidents(path: str) -> Dict[str, Any]:
    """What a file of errors says; empty while there is none."""
    try:
        return read_json(path) or {}
    except (OSError, AgentError):
        return {}
