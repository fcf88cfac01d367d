"""``Monitor``: the user's object for sampling a target's GPUs and host without a run."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from jupyter_amltrain.errors import TargetUnreachable, UnknownRun
from jupyter_amltrain.kernel.gpu_record import TABLE_FIGURES, gpu_record, note_of
from jupyter_amltrain.kernel.observers import FrameCallback
from jupyter_amltrain.kernel.run_record import record_of
from jupyter_amltrain.kernel.session import controller
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.telemetry import MIB, NodeTelemetry, known
from jupyter_amltrain.output.mime import View, parse_window
from jupyter_amltrain.schema.record import RunRecord

#: Seconds to wait for the first sample of a target; an idle driver needs several.
FIRST_SAMPLE_TIMEOUT_S = 30.0


class Monitor:
    """Samples GPUs and host of a target until :meth:`stop` or the end of the kernel."""

    def __init__(self, handle: str, window: float = 600.0) -> None:
        self.handle = handle
        self._window = parse_window(window)

    def _entry(self) -> Entry:
        entry = controller().monitors.entry(self.handle)
        if entry is None:
            raise UnknownRun(f"{self.handle} has stopped.", hint="Start another: %aml_monitor")
        return entry

    def record(self) -> RunRecord:
        """Return the record that a cell output shows."""

        async def get() -> RunRecord:
            return record_of(self._entry())

        return controller().loop.call(get())

    def watch(self, on_frame: FrameCallback, rate: float = 2.0) -> Future[None]:
        """Call `on_frame(record, None)` on the loop thread now, periodically, and at the end."""
        return controller().loop.post(controller().monitors.watch(self.handle, on_frame))

    def show(self) -> None:
        """Display live charts in the current cell."""
        View(self, self._window).show()

    def widget(self, window: float = 600.0) -> Any:
        """Return the charts as plain ipywidgets, for front ends without the labextension."""
        from jupyter_amltrain.output.plain import plain_dashboard

        return plain_dashboard(controller(), self.handle, window)

    def snapshot(self) -> dict[str, Any]:
        """Return the newest sample, waiting for the first one; the last sample if the monitor has stopped.

        ``t``: unix seconds of the sample;
        ``gpus``: rows of ``index``, ``label`` (``GPU 0 MIG 1``), ``name``, ``util`` (percent), ``memory``,
        ``memory_total`` (MiB), ``power``, ``power_limit`` (W), ``temperature`` (C), ``throttle`` (words), ``lost``
        (the driver has lost the GPU), and, where the device supports them, ``sm_activity``, ``tensor_activity``,
        ``dram_bandwidth``, ``memory_busy`` (percent), ``pcie_rx``, ``pcie_tx``, ``nvlink_rx``, ``nvlink_tx``
        (MiB/s); ``processes``: rows of ``gpu``, ``label``, ``pid``, ``user``, ``command``, ``memory`` (MiB),
        ``sm`` (percent); ``host``: ``cpu`` (percent of all cores), ``memory`` (bytes);
        ``note``: a sentence or empty. ``None`` marks values that the device does not report; ``t`` is ``None`` before
        the first sample of a service that has values only while something runs, which ``note`` says.

        Raises
        ------
        TargetUnreachable
            No sample arrived in time.
        UnknownRun
            The monitor stopped by itself; the message gives the reason.
        """

        async def get() -> dict[str, Any]:
            entry = self._entry()
            controller().monitors.change_viewers(self.handle, 0)  # counts as activity of the monitor
            await controller().monitors.first_sample(self.handle, FIRST_SAMPLE_TIMEOUT_S)
            if entry.run.error:
                raise UnknownRun(f"{self.handle} has stopped: {entry.run.error}", hint="Start another: %aml_monitor")
            return _newest(entry)

        sample = controller().loop.call(get(), None)
        if not sample:
            raise TargetUnreachable(
                f"{self.handle}: no sample within {FIRST_SAMPLE_TIMEOUT_S:g} s.",
                hint="Check the target: %aml_compute test",
            )
        return sample

    def stop(self) -> None:
        """Stop the monitor; the charts keep their last state."""
        controller().loop.call(controller().monitors.close(self.handle), 60)

    def _ipython_display_(self) -> None:
        self.show()

    def __repr__(self) -> str:
        return f"<Monitor {self.handle}>"


def _newest(entry: Entry) -> dict[str, Any]:
    """Return the newest sample of the GPUs of all nodes and of the first host; empty without samples."""
    nodes = {node.node: node for node in entry.telemetry.nodes() if node.ticks}
    if not nodes:
        reason = entry.run.status.detail
        return {"t": None, "gpus": [], "processes": [], "host": {}, "note": reason} if reason else {}
    first = next(iter(nodes.values()))

    def value(node: NodeTelemetry | None, name: str) -> float | None:
        if node is None or name not in node.index:
            return None
        return known(node.ring[node.index[name], (node.ticks - 1) % len(node.t)])

    part = gpu_record(entry.telemetry, False)
    gpus = [
        {
            "index": gpu.index,
            "label": gpu.label if len(nodes) == 1 else f"node {gpu.node} {gpu.label}",
            "name": gpu.name,
            "lost": gpu.lost,
            "memory_total": None if gpu.memory_total is None else gpu.memory_total / MIB,
            "power_limit": gpu.power_limit,
            **{
                field: value(nodes.get(gpu.node), f"gpu{gpu.index}.{field}")
                for field in ("util", "memory", "power", "temperature")
            },
            **{field: now[field] for field in TABLE_FIGURES if field in now},
            "throttle": now.get("throttle"),
        }
        for gpu, now in (zip(part.gpus, part.now, strict=False) if part is not None else ())
    ]
    processes = [
        {
            "gpu": process.index,
            **({} if len(nodes) == 1 else {"label": f"node {process.node} {process.label}"}),
            "pid": process.pid,
            "user": process.user,
            "command": process.name,
            "memory": None if process.memory is None else process.memory / MIB,
            "sm": process.sm,
        }
        for process in (part.processes if part is not None else ())
    ]
    host = {"cpu": value(first, "host_cpu"), "memory": value(first, "host_memory")}
    return {"t": first.last_t, "gpus": gpus, "processes": processes, "host": host, "note": note_of(entry.telemetry)}
