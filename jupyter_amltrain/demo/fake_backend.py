"""The demonstration backend: targets and runs that cost nothing and touch no machine."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from jupyter_amltrain.backends.base import Backend, LaunchPlan
from jupyter_amltrain.backends.capabilities import TargetMonitors
from jupyter_amltrain.backends.local_limits import check_machine
from jupyter_amltrain.backends.provisioner import Progress, Provisioner, ProvisionState
from jupyter_amltrain.backends.streams import (
    MONITORS,
    PER_NODE,
    Chunk,
    RunEvents,
    StreamChanges,
    monitor_of,
    stream_of,
)
from jupyter_amltrain.backends.target_files import TargetFiles
from jupyter_amltrain.demo import FakeTarget
from jupyter_amltrain.demo.fake_node import FakeNode, uuid_of
from jupyter_amltrain.demo.machines import FakeMachines, size_of, target_info_of
from jupyter_amltrain.errors import (
    AmlTrainError,
    CommandError,
    ResultMissing,
)
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.fields import TargetAction
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Phase, Run, RunState, RunStatus, make_handle
from jupyter_amltrain.schema.run_file import OutValue
from jupyter_amltrain.schema.target import ComputeTarget, TargetInfo
from jupyter_amltrain.state_dir import StateRoot

#: Seconds between two looks at the clock for changes of simulated runs.
CLOCK_INTERVAL_S = 0.02

#: Seconds that a monitor lives after the last call.
MONITOR_LIFETIME_S = 30.0

#: Seconds of a run until its GPUs are called unused, where its spec does not say.
GPU_GRACE_S = 60.0


class _Life:
    """A simulated run, with the times of its submit and its cancel (monotonic seconds)."""

    def __init__(self, run: Run, secrets: Collection[str]) -> None:
        self.run = run
        self.start = time.monotonic()
        self.canceled: float | None = None
        self.secrets = tuple(secrets)
        self.nodes: dict[int, FakeNode] = {}


class _Monitor:
    """A monitor with one node; `requested_at` is the time of the last call (monotonic seconds)."""

    def __init__(self, gpus: Sequence[int], period: float, model: tuple[str, int]) -> None:
        self.start = self.requested_at = time.monotonic()
        self.node = FakeNode(0, gpus, time.time(), period, model=model)


@functools.cache
def _devices(nodes: int, gpus: int) -> tuple[str, ...]:
    return tuple(uuid_of(node, i) for node in range(nodes) for i in range(gpus))


class _Clock(RunEvents):
    """Events of simulated runs, which change with the clock.

    Parameters
    ----------
    moment
        Returns the status of a run without its times, and the number of its ticks so far.
    """

    def __init__(self, moment: Callable[[str], tuple[Any, int]]) -> None:
        self._moment = moment
        self._known: dict[str, tuple[Any, int]] = {}

    async def wait(self, run_ids: Sequence[str], viewed: Sequence[str], timeout: float) -> StreamChanges:
        await asyncio.sleep(min(timeout, CLOCK_INTERVAL_S))
        known, self._known = self._known, {run_id: self._moment(run_id) for run_id in run_ids}
        news: dict[str, Collection[str]] = {}
        for run_id, (status, ticks) in self._known.items():
            old = known.get(run_id)
            if old is None or status != old[0]:
                news.update(self.anything([run_id]))
            elif ticks != old[1] and run_id in viewed:
                news[run_id] = PER_NODE
        return news

    def close(self) -> None:
        pass


class FakeMonitors(TargetMonitors):
    """Monitors of the simulated machines."""

    def __init__(self, machines: FakeMachines) -> None:
        self._machines = machines
        self._all: dict[str, _Monitor] = {}

    def node(self, monitor_id: str) -> FakeNode | None:
        """Return the machine of a monitor with its telemetry up to now; ``None`` when it has ended."""
        watched = self._all.get(monitor_id)
        if watched is None or time.monotonic() - watched.requested_at > MONITOR_LIFETIME_S:
            self._all.pop(monitor_id, None)
            return None
        return watched.node.upto(time.monotonic() - watched.start)

    async def start(self, monitor_id: str, gpus: Sequence[int] | None, period: float) -> str:
        """See :meth:`TargetMonitors.start`."""
        self._machines.require_reachable()
        self._machines.require_on()
        monitor_of(f"{MONITORS}{monitor_id}")
        indices = range(self._machines.script.gpus)
        for index in gpus or ():
            if index not in indices:
                listed = f"Available: {', '.join(map(str, indices))}." if indices else "It has no GPU."
                raise CommandError(f"There is no GPU {index} on this machine. {listed}")
        watched = self._all.get(monitor_id)
        if watched is None or time.monotonic() - watched.requested_at > MONITOR_LIFETIME_S:
            model = size_of(self._machines.script).model
            watched = self._all[monitor_id] = _Monitor(indices if gpus is None else gpus, period, model)
        watched.requested_at = time.monotonic()
        return f"fake:{MONITORS}{monitor_id}"

    async def stop(self, monitor_id: str) -> None:
        """See :meth:`TargetMonitors.stop`."""
        self._machines.require_reachable()
        self._all.pop(monitor_id, None)


class FakeFiles(TargetFiles):
    """Simulated runs have no files."""

    def __init__(self, machines: FakeMachines) -> None:
        self._machines = machines

    async def log_path(self, run_id: str) -> str:
        """See :meth:`TargetFiles.log_path`."""
        return f"fake:{run_id}/log"

    async def outputs(self, run_id: str, names: Sequence[str]) -> Mapping[str, OutValue | AmlTrainError]:
        """See :meth:`TargetFiles.outputs`."""
        self._machines.require_reachable()
        return {
            name: ResultMissing(f"--out {name}: a fake run computes nothing.", hint="Use --target local.")
            for name in names
        }


class FakeBackend(Backend, Provisioner):
    """Runs nothing; simulates runs and machines with the behavior that its target configures."""

    Target: ClassVar[type[ComputeTarget]] = FakeTarget

    def __init__(self, target: FakeTarget, loop: LoopThread, root: StateRoot) -> None:
        self._machines = FakeMachines(target, self._busy_machines, self._cancel_all)
        super().__init__(target, FakeFiles(self._machines))
        self._lives: dict[str, _Life] = {}
        self.monitors: FakeMonitors = FakeMonitors(self._machines)

    @property
    def _script(self) -> FakeTarget:
        return self._machines.script

    def rescript(self, **changes: Any) -> None:
        """Change the simulated behavior from now on, e.g. ``unreachable=True``.

        Parameters
        ----------
        **changes
            Fields of :class:`~jupyter_amltrain.demo.FakeTarget`.
        """
        self._machines.script = msgspec.structs.replace(self._script, **changes)

    async def check(self) -> TargetInfo:
        """See :meth:`Backend.check`."""
        self._machines.require_reachable()
        if self._script.fails == "test":
            raise self._machines.failure("test")
        return target_info_of(self._script, self._running(), self._queued())

    def _queued(self) -> int:
        return sum(self._status(life).state is RunState.QUEUED for life in self._lives.values())

    def _running(self) -> int:
        return sum(self._status(life).state is RunState.RUNNING for life in self._lives.values())

    def _busy_machines(self) -> int:
        return self._running() * self._script.nodes

    def _cancel_all(self) -> None:
        for life in self._lives.values():
            if not self._status(life).state.terminal:
                life.canceled = time.monotonic()

    def check_job(self, spec: JobSpec) -> None:
        """See :meth:`Backend.check_job`; it simulates a machine."""
        super().check_job(spec)
        check_machine(spec, self.target.name, has_agent=False)

    async def plan(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> LaunchPlan:
        """See :meth:`Backend.plan`."""
        request = {"run": run_id, "target": self.target.name, "spec": msgspec.to_builtins(spec)}
        return LaunchPlan(run_id=run_id, spec=spec, snapshot=snapshot, request=request)

    async def launch(self, plan: LaunchPlan, environ: Mapping[str, str], secrets: Mapping[str, str]) -> Run:
        """See :meth:`Backend.launch`."""
        self._machines.require_reachable()
        self._machines.require_on()
        if plan.run_id in self._lives:
            raise CommandError(f"{self.target.name} already has a run {plan.run_id}.", hint="Submit it again.")
        run = Run(
            handle=make_handle(self.target.name, plan.run_id),
            spec=plan.spec,
            status=RunStatus(state=RunState.QUEUED, version=1),
            created=time.time(),
            folder=f"fake:{plan.run_id}",
        )
        self._lives[plan.run_id] = _Life(run, secrets)
        return run

    def _ran(self, life: _Life) -> float:
        """Return the run time in seconds; below 0 before the start."""
        now = time.monotonic() if life.canceled is None else life.canceled
        return min(now - life.start - self._script.queued, self._script.running)

    def _truth(self, life: _Life) -> dict[str, str]:
        ran, grace = self._ran(life), life.run.spec.gpu_grace or GPU_GRACE_S
        if not self._script.gpus or ran < 0:
            return {}
        if not self._script.idle:
            if ran < 2:  # see `gpu_values`
                return {}
            return {"verdict": "used", "detail": "GPU 0 was used (utilization 75 %), first after 2 s", "cause": ""}
        if ran < grace:
            return {}
        detail = f"GPU 0 stayed at 0 % utilization and within 1 MiB of its memory before the run, for {grace:g} s"
        return {"verdict": "not used", "detail": detail, "cause": "the target simulates idle GPUs"}

    def _status(self, life: _Life) -> RunStatus:
        script = self._script
        return msgspec.structs.replace(
            self._by_clock(life),
            devices=_devices(script.nodes, script.gpus),
            nodes=script.nodes,
            truth=self._truth(life),
        )

    def _moment(self, run_id: str) -> tuple[Any, int]:
        life, script = self._lives.get(run_id), self._script
        if life is None:
            return None, 0
        # The behavior is part of the status: a target that cannot be reached says nothing of its runs.
        status = (self._by_clock(life).state, self._truth(life).get("verdict"), script)
        return status, math.floor(self._ran(life) / script.period)

    def _by_clock(self, life: _Life) -> RunStatus:
        script, age = self._script, time.monotonic() - life.start
        if life.canceled is not None:
            age = min(age, life.canceled - life.start)
        begin = life.run.created
        # As on a machine, a phase has no duration while it lasts: else each poll would be a change.
        going = life.canceled is None and age < script.queued + script.running
        queued = Phase(
            name="queued", start=begin, seconds=None if going and age < script.queued else min(age, script.queued)
        )
        running = Phase(
            name="running", start=begin + script.queued, seconds=None if going else max(0.0, age - script.queued)
        )
        if life.canceled is not None:
            return RunStatus(
                state=RunState.CANCELED,
                reason="canceled",
                cancel_requested=True,
                phases=(queued, running) if age > script.queued else (queued,),
                version=9,
            )
        if age < script.queued:
            return RunStatus(state=RunState.QUEUED, phases=(queued,), version=1)
        if age < script.queued + script.running:
            return RunStatus(state=RunState.RUNNING, phases=(queued, running), version=2)
        good = script.exit_code == 0
        return RunStatus(
            state=RunState.COMPLETED if good else RunState.FAILED,
            reason="exit",
            exit_code=script.exit_code,
            phases=(queued, running),
            version=9,
        )

    async def poll(self, run_ids: Sequence[str]) -> Mapping[str, RunStatus]:
        """See :meth:`Backend.poll`."""
        self._machines.require_reachable()
        return {i: self._status(self._lives[i]) for i in run_ids if i in self._lives}

    async def find(self, run_id: str) -> Run | None:
        """See :meth:`Backend.find`."""
        self._machines.require_reachable()
        life = self._lives.get(run_id)
        return None if life is None else msgspec.structs.replace(life.run, status=self._status(life))

    async def list(self, known: Collection[str] = ()) -> tuple[Collection[str], Sequence[Run]]:
        """See :meth:`Backend.list`."""
        self._machines.require_reachable()
        lives = [life for run_id, life in self._lives.items() if run_id not in known]
        return set(self._lives), [msgspec.structs.replace(life.run, status=self._status(life)) for life in lives]

    async def cancel(self, run_id: str) -> None:
        """See :meth:`Backend.cancel`."""
        self._machines.require_reachable()
        life = self._lives.get(run_id)
        if life is not None and not self._status(life).state.terminal:
            life.canceled = time.monotonic()

    async def delete(self, run_id: str) -> None:
        """See :meth:`Backend.delete`."""
        self._machines.require_reachable()
        life = self._lives.get(run_id)
        if life is not None and not self._status(life).state.terminal:
            raise CommandError(
                f"{life.run.handle} has not ended.", hint=f"Cancel it first: %aml_runs cancel {life.run.handle}"
            )
        self._lives.pop(run_id, None)

    def _node(self, run_id: str, number: int) -> FakeNode | None:
        """Return a node of a run or a monitor with its telemetry up to now."""
        if (name := monitor_of(run_id)) is not None:
            return self.monitors.node(name) if number == 0 else None
        life = self._lives.get(run_id)
        if life is None or number >= self._script.nodes or self._ran(life) < 0:
            return None
        if number not in life.nodes:
            start, script = life.run.created + self._script.queued, self._script
            life.nodes[number] = FakeNode(
                number, range(script.gpus), start, script.period, script.idle, size_of(script).model
            )
        return life.nodes[number].upto(self._ran(life))

    def _stream(self, run_id: str, stream: str) -> bytes | bytearray:
        stream, number = stream_of(stream)
        if stream in ("telemetry", "minutes", "summary"):
            node = self._node(run_id, number)
            if node is None:
                return b""
            return {"telemetry": node.raw, "minutes": node.minutes}.get(stream) or node.summary()
        life = self._lives.get(run_id)
        if life is None or number or self._status(life).state is RunState.QUEUED:
            return b""
        if stream == "log":
            end = self._status(life).state.terminal
            return b"fake: started\n" + (b"fake: ended\n" if end else b"")
        if stream == "metrics":
            records: list[dict[str, Any]] = [{"seq": 1, "t": 0, "op": "init", "b": {}, "a": {"id": run_id}}]
            body = {"run_id": run_id, "key": "loss", "value": 0.5, "timestamp": 1, "step": 1}
            records.append({"seq": 2, "t": 1, "op": "runs/log-metric", "b": body})
            return b"".join(json.dumps(r).encode() + b"\n" for r in records)
        return b""

    async def read(self, run_id: str, stream: str, offset: int, limit: int = 1 << 20) -> Chunk:
        """See :meth:`Backend.read`."""
        self._machines.require_reachable()
        whole = self._stream(run_id, stream)
        offset = max(0, len(whole) + offset) if offset < 0 else offset
        data = bytes(whole[offset : offset + limit])
        return Chunk(data, offset + len(data))

    def events(self) -> RunEvents:
        """See :meth:`Backend.events`."""
        return _Clock(self._moment)

    async def close(self) -> None:
        """See :meth:`Backend.close`."""

    # ---- machines

    async def state(self) -> ProvisionState:
        """See :meth:`Provisioner.state`."""
        return await self._machines.state()

    async def create(self, progress: Progress) -> None:
        """See :meth:`Provisioner.create`."""
        await self._machines.create(progress)

    async def remove(self, progress: Progress) -> None:
        """See :meth:`Provisioner.remove`."""
        await self._machines.remove(progress)

    async def start(self, progress: Progress) -> None:
        """See :meth:`Provisioner.start`."""
        await self._machines.start(progress)

    async def stop(self, progress: Progress) -> None:
        """See :meth:`Provisioner.stop`."""
        await self._machines.stop(progress)

    async def scale(self, settings: Mapping[str, Any], progress: Progress) -> None:
        """See :meth:`Provisioner.scale`."""
        await self._machines.scale(settings, progress)
        self.target = msgspec.structs.replace(self.target, **settings)

    def confirmation(self, verb: str, values: Mapping[str, Any], *, running: int, queued: int = 0) -> str:
        """See :meth:`Provisioner.confirmation`."""
        return self._machines.confirmation(verb, values, running=running, queued=queued)

    def actions(self, state: ProvisionState) -> tuple[TargetAction, ...]:
        """See :meth:`Provisioner.actions`."""
        return self._machines.actions(state)

    def renew(self, target: ComputeTarget) -> None:
        """See :meth:`Provisioner.renew`."""
        assert isinstance(target, FakeTarget)
        self.target = target
        self._machines.renew(target)
