"""The loop that samples a run's processes, its machine and its GPUs into ``telemetry/``.

The loop runs in a process of its own, which forks nothing, so that it may keep the driver open.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from typing import Any, Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .. import protocol, testing
from ..process_setup import wakeup_pipe
from ..queue.slots import usable_cpus
from . import driver_state, gpu_processes, gpu_usage, host, nvml
from .gpu_columns import MEMORY, PEAK, TICKS, UTIL
from .gpu_columns import TICK_WIDTH as WIDTH
from .gpu_devices import Device, Driver, DriverError
from .gpu_figures import GpuFigures
from .gpu_incidents import GpuIncidents
from .gpu_readings import GpuReadings
from .gpu_slow import SlowMetrics, SlowReader
from .line_gpus import LineGpus
from .reduce import highest
from .summary import Summary
from .telemetry_files import Minutes, TelemetryFile, shortened
from .torch_memory import TorchMemory

#: Slow values are written again every so many closed minutes; readers of a long file begin an hour before its end.
REWRITE_MINUTES = 5


def period() -> float:
    """Return the seconds between samples: ``$AMLTRAIN_SAMPLE_PERIOD``, else 1."""
    try:
        return max(0.01, float(os.environ["AMLTRAIN_SAMPLE_PERIOD"]))
    except (KeyError, ValueError):
        return 1.0


def find_gpus(
    uuids: Optional[Sequence[str]],
    indices: Optional[Sequence[int]],
    known: Optional[List[Dict[str, Any]]],
    lost: Sequence[Mapping[str, Any]] = (),
) -> Tuple[GpuReadings, str]:
    """Open the GPUs; return their readings, and one sentence if some or all cannot be read.

    Parameters
    ----------
    uuids
        Devices of the run; ``None`` for a monitor.
    indices
        GPUs of a monitor; ``None`` for all.
    known
        The header's ``gpus`` of an earlier sampler of this file.
    lost
        GPUs of a monitor that cannot be used now (see `KnownGpus`): they are listed, and looked for.
    """
    driver: Optional[Driver] = None
    devices: List[Device] = []
    note = ""
    try:
        driver = Driver()
        if known is not None:
            devices = list(driver.by_uuid([gpu["uuid"] for gpu in known]).values())
        elif uuids is not None:
            found = driver.by_uuid(uuids)
            devices = [found[uuid] for uuid in uuids if uuid in found]
            unknown = [uuid for uuid in uuids if uuid not in found]
            note = "the driver does not know %s" % ", ".join(unknown) if unknown else ""
        else:
            devices = driver.devices(indices)
            lost = [gpu for gpu in lost if indices is None or gpu["index"] in indices]
            note = driver_state.lost_text(lost) or ("" if devices else "the NVIDIA driver knows no GPU")
    except DriverError as error:
        note = str(error)
    by_uuid = {device.uuid: device for device in devices}
    if known is not None:
        return GpuReadings(driver, known, by_uuid), note
    gpus: List[Dict[str, Any]] = [device.facts() for device in devices]
    if uuids is None and driver is not None:
        _add_lost(gpus, lost)
    readings = GpuReadings(driver, gpus, by_uuid)
    _add_baselines(readings, gpus)
    return readings, note


def _add_baselines(readings: GpuReadings, gpus: List[Dict[str, Any]]) -> None:
    """Add what the GPUs show before the run to the header's rows."""
    slow = SlowReader(readings)
    readings.read()  # a function that this driver lacks is replaced at the next reading
    first = readings.read()
    for i, gpu in enumerate(gpus):
        values, energy = slow.read(i), next(iter(slow.energy(i)), None)
        gpu["memory_total"], gpu["power_limit"] = slow.total_memory(i), values["power_limit"]
        gpu["baseline"], gpu["reserved"] = first[WIDTH * i + MEMORY], readings.reserved(i)
        gpu["baseline_util"] = highest((first[WIDTH * i + UTIL], first[WIDTH * i + PEAK]))
        if energy is not None:
            gpu["energy"] = energy


def _add_lost(gpus: List[Dict[str, Any]], lost: Sequence[Mapping[str, Any]]) -> None:
    """Insert GPUs that the driver does not list, by number; one whose number another GPU has now is left out."""
    numbers = {gpu["index"] for gpu in gpus}
    gpus += [
        {"index": gpu["index"], "uuid": gpu["uuid"] or "", "name": gpu["name"], "mig": False}
        for gpu in lost
        if gpu["index"] not in numbers
    ]
    # Instances follow their GPU.
    gpus.sort(key=lambda gpu: (gpu["index"], -1) if gpu["index"] < 100 else (gpu["index"] // 100 - 1, gpu["index"]))


class Share(NamedTuple):
    """A machine of a service's run; the service starts one supervisor for each process."""

    node: int  #: number of the machine within the run
    mark: str  #: beginning of the marks of its processes
    grace: Optional[float]  #: seconds until GPUs may be reported as unused; ``None``: no check


class Sampler:
    """One sampler's files and readings.

    Parameters
    ----------
    folder
        Folder that holds ``telemetry``.
    root
        The supervisor's pid; ``None`` without a run.
    every
        Seconds between ticks.
    uuids, indices
        See :func:`find_gpus`; an empty list of either means no GPU.
    share
        Position of this machine in a run that a service has started.
    lost
        See :func:`find_gpus`.
    mark
        See :func:`run`.

    Raises
    ------
    OSError
        The file cannot be opened.
    """

    def __init__(
        self,
        folder: str,
        root: Optional[int],
        every: float,
        uuids: Optional[Sequence[str]],
        indices: Optional[Sequence[int]] = None,
        share: Optional[Share] = None,
        lost: Sequence[Mapping[str, Any]] = (),
        mark: str = "",
    ) -> None:
        self.every = every
        self.node = share.node if share else 0
        self.has_container = bool(mark)
        self.usage = host.Usage(root, share.mark if share else mark, every / 2)
        self.file = TelemetryFile(folder, self.node)
        header = self.file.header
        known = header.get("gpus", []) if header else None
        if (uuids if uuids is not None else indices) == [] or known == []:
            self.readings, note = GpuReadings(None, [], {}), ""
        else:
            self.readings, note = find_gpus(uuids, indices, known, lost)
        self.figures = GpuFigures(self.readings, header.get("gpu_columns", [])[WIDTH:] if header else None)
        if not header:
            self.file.begin(self._header(note))
        self.names = [name for name, _ in host.COLUMNS]
        self.slow_metrics = SlowMetrics(self.readings)
        self._closed_minutes = 0
        self.incidents = GpuIncidents(folder, self.readings, self.node)
        self.torch = TorchMemory(folder, self.readings.gpus)
        self.line_gpus = LineGpus(folder) if root is not None and self.readings.gpus else None
        self.usage_check = self._usage_check(folder, uuids if root is not None else None, share, note)
        self.sharing = gpu_processes.SharingDetector(self.readings.gpus) if self.usage_check is not None else None
        columns = self.file.header["gpu_columns"]
        per_gpu = ["gpu%s.%s" % (gpu["index"], name) for gpu in self.readings.gpus for name in columns]
        self.minutes = Minutes(folder, self.names + per_gpu, self.node)
        self.summary = Summary(folder, self.file.header, self._figures)
        self._resume()
        # The first differences need an earlier reading.
        self.usage.read()

    def _usage_check(
        self, folder: str, uuids: Optional[Sequence[str]], share: Optional[Share], note: str
    ) -> Optional[gpu_usage.GpuUsageCheck]:
        """Return the check whether the run with these devices, or this share of a service's run, uses its GPUs."""
        gpus = self.readings.gpus
        if uuids:
            baselines = [gpu.get("baseline") for gpu in gpus]
            busy = [gpu.get("baseline_util") for gpu in gpus]
            return gpu_usage.usage_check_of_run(folder, list(uuids), gpus, baselines, self.every, note, busy)
        if share is None or share.grace is None or not gpus:
            return None
        # If a process of the run is running already, memory on the GPUs may be its own.
        free = not self.usage.members()
        baselines = [gpu.get("baseline") if free else None for gpu in gpus]
        busy = [gpu.get("baseline_util") if free else None for gpu in gpus]
        return gpu_usage.GpuUsageCheck(
            folder, gpus, share.grace, baselines, self.every, note, node=share.node, busy=busy
        )

    def _header(self, note: str) -> Dict[str, Any]:
        return dict(
            host.header(self.every, usable_cpus()),
            node=self.node,
            host=socket.gethostname(),
            gpu_columns=[column.name for column in TICKS] + [name for name, _ in self.figures.columns],
            gpu_units=[column.unit for column in TICKS] + [unit for _, unit in self.figures.columns],
            gpus=self.readings.gpus,
            gpu_note=note,
            **({} if self.readings.driver is None else nvml.versions(self.readings.driver.nvml)),
        )

    def _figures(self, i: int) -> Dict[str, Any]:
        """Return the summary's values of one GPU that do not come from ticks."""
        return {**self.incidents.figures(i), **self.torch.figures(i), **self.figures.sources(i)}

    def _resume(self) -> None:
        """Add the ticks that an earlier sampler has written since its last minute."""
        minutes, summary = self.minutes, self.summary
        earlier = minutes if minutes.offset <= summary.offset else summary
        for tick in self.file.ticks(earlier.offset, earlier.seq):
            if minutes.closes(tick.t):
                summary.add(minutes.close())
            minutes.add(tick)

    def tick(self) -> None:
        """Take one sample."""
        values = shortened(self.names, self.usage.read())
        self.incidents.before_reading()
        gpus = self.readings.read()
        if self.line_gpus is not None:
            self.line_gpus.write(protocol.mono(), gpus[UTIL::WIDTH])
        figures = self.figures.read()
        members = self.usage.rows
        if self.readings.gpus:
            self.slow_metrics.read(self.every, members)
            self.incidents.after_reading([row for rows in self.slow_metrics.processes for row in rows])
            self.torch.read(None if self.has_container else members)  # a container has pids of its own
            self.slow_metrics.add(self.torch.values)
        self._note_sharing(members)
        # 10 ms are precise enough for one tick per second.
        t = round(protocol.wall(), 2 if self.every >= 1 else 3)
        if self.minutes.closes(t):
            self.summary.add(self.minutes.close())
            self.summary.save()
            self._closed_minutes += 1
            if self._closed_minutes % REWRITE_MINUTES == 0:
                self.slow_metrics.write_again()
        for i, count in self.slow_metrics.take_energy().items():
            self.summary.energy(i, t, count)
        objects, update = self.slow_metrics.updates()
        objects = [dict(one, t=t) if "note" in one else one for one in objects]
        written = [value for i, row in enumerate(figures) for value in (*gpus[WIDTH * i : WIDTH * (i + 1)], *row)]
        tick = self.file.add(t, values, written, objects)
        if tick is not None:
            self.slow_metrics.set_written(update)
            self.minutes.add(tick)
            notes = [one["note"] for one in objects if "note" in one]
            if notes:
                self.summary.note(t, notes)
        if self.usage_check is not None:
            rows = [
                {"util": gpus[k + UTIL], "peak": gpus[k + PEAK], "memory": gpus[k + MEMORY]}
                for k in range(0, len(gpus), WIDTH)
            ]
            self.usage_check.tick(protocol.mono(), rows, self.slow_metrics.values, members)

    def _note_sharing(self, members: Collection[int]) -> None:
        """Note that processes of other users have appeared on the run's GPUs, whatever the verdict on its own use."""
        if self.sharing is None or self.usage_check is None:
            return
        for at, text in self.sharing.check(self.slow_metrics.processes, members).items():
            self.readings.notes.append(text)
            self.usage_check.share(at)

    def close(self) -> None:
        """Write the last figures; the current minute stays open for a sampler that resumes."""
        self.incidents.close()
        self.summary.note(protocol.wall(), self.readings.notes)
        self.torch.read((), final=True)
        self.summary.add(self.minutes.ticks)
        for i in range(len(self.readings.gpus)):
            for count in self.slow_metrics.slow.energy(i, final=True):
                self.summary.energy(i, protocol.wall(), count)
        self.summary.save()
        if self.usage_check is not None:
            self.usage_check.close(self.summary.only_copied)
        if self.readings.driver is not None:
            self.readings.driver.stop()


def run(
    folder: str,
    root: int,
    devices: Optional[Sequence[str]] = (),
    ready: Optional[int] = None,
    share: Optional[Share] = None,
    mark: str = "",
) -> int:
    """Body of a forked sampler; ends at SIGTERM or when its supervisor has ended.

    Parameters
    ----------
    root
        Pid of the supervisor.
    devices
        UUIDs of the GPUs that the run owns; ``None`` for all of the machine.
    ready
        Descriptor that gets one byte after the first reading of the GPUs: the job may start.
    share
        Position of this machine in a run that a service has started.
    mark
        Mark of the processes of a run in a container, which are not descendants of the supervisor; else empty.
    """
    every = period()
    wakeup, _ = wakeup_pipe(signal.SIGTERM)
    try:
        sampler = Sampler(folder, root, every, None if devices is None else list(devices), share=share, mark=mark)
    finally:
        if ready is not None:
            try:
                os.write(ready, b"r")
            except OSError:  # the reader has stopped waiting
                pass
            os.close(ready)
    return _loop(sampler, lambda: os.getppid() == root, wakeup)


def watch(
    folder: str,
    indices: Optional[Sequence[int]],
    every: float,
    alive: Callable[[], bool],
    lost: Sequence[Mapping[str, Any]] = (),
) -> int:
    """Body of a sampler of a machine without a run.

    Parameters
    ----------
    folder
        Folder that holds ``telemetry``.
    indices
        Numbers of the GPUs; ``None`` for all.
    every
        Seconds between ticks.
    alive
        Called at each tick; returns whether to continue.
    lost
        See :func:`find_gpus`.
    """
    wakeup, _ = wakeup_pipe(signal.SIGTERM)
    return _loop(Sampler(folder, None, every, None, indices, lost=lost), alive, wakeup)


def _loop(sampler: Sampler, alive: Callable[[], bool], wakeup: int) -> int:
    due = protocol.mono() + min(sampler.every, 0.2)
    while alive():
        if select.select([wakeup], [], [], max(0.0, due - protocol.mono()))[0]:
            break
        testing.hit("sampler_tick")
        sampler.tick()
        # A late tick moves the later ones: no burst after the machine was suspended.
        due = max(due + sampler.every, protocol.mono())
    sampler.close()
    return 0
