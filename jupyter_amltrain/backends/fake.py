"""A backend in memory with a scripted life: every run goes through it by the clock.

Public: documentation, examples and tests of front doors use it where a real
target would need an account.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from jupyter_amltrain.backends.base import MONITORS, Backend, Chunk, News, Plan, RunChanges, monitor_of, stream_of
from jupyter_amltrain.backends.fake_lifecycle import FakeMachines
from jupyter_amltrain.backends.fake_sizes import found, size_of
from jupyter_amltrain.backends.fake_telemetry import FakeNode, uuid_of
from jupyter_amltrain.backends.lifecycle import Progress, Provisioned, ProvisionState
from jupyter_amltrain.errors import CommandError, ResultMissing
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.snapshot import Snapshot
from jupyter_amltrain.spec.fields import Act
from jupyter_amltrain.spec.job import JobSpec
from jupyter_amltrain.spec.run import Phase, Run, RunState, RunStatus, make_handle
from jupyter_amltrain.spec.target import ComputeTarget, FakeTarget, TargetInfo
from jupyter_amltrain.state import StateRoot

#: Seconds that a monitor lives after the last call.
KEEP = 30.0
#: Seconds of a run until its GPUs are called unused, where its spec does not say.
GRACE = 60.0


class _Life:
    """When a run was accepted and cancelled (monotonic seconds)."""

    def __init__(self, run: Run, secrets: Collection[str]) -> None:
        self.run = run
        self.start = time.monotonic()
        self.canceled: float | None = None
        self.secrets = tuple(secrets)
        self.nodes: dict[int, FakeNode] = {}


class _Monitor:
    """A monitor with one node; `asked` is when it was called last (monotonic seconds)."""

    def __init__(self, gpus: Sequence[int], period: float, model: tuple[str, int]) -> None:
        self.start = self.asked = time.monotonic()
        self.node = FakeNode(0, gpus, time.time(), period, model=model)


class _Clock(RunChanges):
    """There may always be news: lives go by the clock."""

    async def wait(self, run_ids: Sequence[str], looked_at: Sequence[str], timeout: float) -> News:
        await asyncio.sleep(min(timeout, 0.02))
        return self.anything(run_ids)

    def close(self) -> None:
        pass


class FakeBackend(Backend, Provisioned):
    """Runs nothing; simulates the life of runs and machines that its target scripts."""

    Target: ClassVar[type[ComputeTarget]] = FakeTarget

    def __init__(self, target: FakeTarget, loop: LoopThread, root: StateRoot) -> None:
        super().__init__(target)
        self._machines = FakeMachines(target, self._busy_machines, self._cancel_all)
        self._lives: dict[str, _Life] = {}
        self._monitors: dict[str, _Monitor] = {}

    @property
    def _script(self) -> FakeTarget:
        return self._machines.script

    def rescript(self, **changes: Any) -> None:
        """Change what the target does from now on, e.g. ``unreachable=True``.

        Parameters
        ----------
        **changes
            Fields of :class:`~jupyter_amltrain.spec.target.FakeTarget`.
        """
        self._machines.script = msgspec.structs.replace(self._script, **changes)

    async def check(self) -> TargetInfo:
        """See :meth:`Backend.check`."""
        self._machines.require_reachable()
        if self._script.fails == "test":
            raise self._machines.failure("test")
        return found(self._script, self._running(), self._queued())

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

    async def plan(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> Plan:
        """See :meth:`Backend.plan`."""
        request = {"run": run_id, "target": self.target.name, "spec": msgspec.to_builtins(spec)}
        return Plan(run_id=run_id, spec=spec, snapshot=snapshot, request=request)

    async def launch(self, plan: Plan, environ: Mapping[str, str], secrets: Mapping[str, str]) -> Run:
        """See :meth:`Backend.launch`."""
        self._machines.require_reachable()
        self._machines.require_on()
        if plan.run_id in self._lives:
            raise CommandError(f"{self.target.name} has a run {plan.run_id} already.", hint="Submit it again.")
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
        """Seconds that a run has run, or ran; below 0 before its start."""
        now = time.monotonic() if life.canceled is None else life.canceled
        return min(now - life.start - self._script.queued, self._script.running)

    def _truth(self, life: _Life) -> dict[str, str]:
        ran, grace = self._ran(life), life.run.spec.gpu_grace or GRACE
        if not self._script.gpus or ran < 0:
            return {}
        if not self._script.idle:
            if ran < 2:  # see `gpu_values`
                return {}
            return {"verdict": "used", "detail": "GPU 0 was used (utilization 75 %), first after 2 s", "cause": ""}
        if ran < grace:
            return {}
        detail = f"GPU 0 stayed at 0 % utilization and within 1 MiB of its memory before the run, for {grace:g} s"
        return {"verdict": "not used", "detail": detail, "cause": "it is scripted to leave its GPUs alone"}

    def _status(self, life: _Life) -> RunStatus:
        devices = tuple(uuid_of(node, i) for node in range(self._script.nodes) for i in range(self._script.gpus))
        status = self._by_clock(life)
        truth = self._truth(life)
        return msgspec.structs.replace(status, devices=devices, nodes=self._script.nodes, truth=truth)

    def _by_clock(self, life: _Life) -> RunStatus:
        script, age = self._script, time.monotonic() - life.start
        if life.canceled is not None:
            age = min(age, life.canceled - life.start)
        begin = life.run.created
        queued = Phase(name="queued", start=begin, seconds=min(age, script.queued))
        running = Phase(name="running", start=begin + script.queued, seconds=max(0.0, age - script.queued))
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

    async def list(self) -> Sequence[Run]:
        """See :meth:`Backend.list`."""
        self._machines.require_reachable()
        return [msgspec.structs.replace(life.run, status=self._status(life)) for life in self._lives.values()]

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
            raise CommandError(f"{life.run.handle} has not ended.", hint=f"%aml_runs cancel {life.run.handle} first.")
        self._lives.pop(run_id, None)

    def _node(self, run_id: str, number: int) -> FakeNode | None:
        """A node of a run or a monitor, brought up to date."""
        if (name := monitor_of(run_id)) is not None:
            watched = self._monitors.get(name)
            if watched is None or time.monotonic() - watched.asked > KEEP:
                self._monitors.pop(name, None)
                return None
            return watched.node.upto(time.monotonic() - watched.start) if number == 0 else None
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

    async def monitor(self, monitor_id: str, gpus: Sequence[int] | None, period: float) -> str:
        """See :meth:`Backend.monitor`."""
        self._machines.require_reachable()
        self._machines.require_on()
        monitor_of(f"{MONITORS}{monitor_id}")
        there = range(self._script.gpus)
        for index in gpus or ():
            if index not in there:
                listed = f"There are: {', '.join(map(str, there))}." if there else "There is none."
                raise CommandError(f"There is no GPU {index} on this machine. {listed}")
        watched = self._monitors.get(monitor_id)
        if watched is None or time.monotonic() - watched.asked > KEEP:
            model = size_of(self._script).model
            watched = self._monitors[monitor_id] = _Monitor(there if gpus is None else gpus, period, model)
        watched.asked = time.monotonic()
        return f"fake:{MONITORS}{monitor_id}"

    async def stop_monitor(self, monitor_id: str) -> None:
        """See :meth:`Backend.stop_monitor`."""
        self._machines.require_reachable()
        self._monitors.pop(monitor_id, None)

    async def log_path(self, run_id: str) -> str:
        """See :meth:`Backend.log_path`."""
        return f"fake:{run_id}/log"

    async def outputs(self, run_id: str, names: Sequence[str]) -> Mapping[str, Any]:
        """See :meth:`Backend.outputs`."""
        self._machines.require_reachable()
        return {
            name: ResultMissing(f"--out {name}: a fake run computes nothing.", hint="Use --target local.")
            for name in names
        }

    def changes(self) -> RunChanges:
        """See :meth:`Backend.changes`."""
        return _Clock()

    async def close(self) -> None:
        """See :meth:`Backend.close`."""

    # ---- machines

    async def state(self) -> ProvisionState:
        """See :meth:`Provisioned.state`."""
        return await self._machines.state()

    async def create(self, progress: Progress) -> None:
        """See :meth:`Provisioned.create`."""
        await self._machines.create(progress)

    async def remove(self, progress: Progress) -> None:
        """See :meth:`Provisioned.remove`."""
        await self._machines.remove(progress)

    async def start(self, progress: Progress) -> None:
        """See :meth:`Provisioned.start`."""
        await self._machines.start(progress)

    async def stop(self, progress: Progress) -> None:
        """See :meth:`Provisioned.stop`."""
        await self._machines.stop(progress)

    async def scale(self, settings: Mapping[str, Any], progress: Progress) -> None:
        """See :meth:`Provisioned.scale`."""
        await self._machines.scale(settings, progress)
        self.target = msgspec.structs.replace(self.target, **settings)

    def asks(self, verb: str, values: Mapping[str, Any], *, running: int, queued: int = 0) -> str:
        """See :meth:`Provisioned.asks`."""
        return self._machines.asks(verb, values, running=running, queued=queued)

    def acts(self, state: ProvisionState) -> tuple[Act, ...]:
        """See :meth:`Provisioned.acts`."""
        return self._machines.acts(state)

    def renew(self, target: ComputeTarget) -> None:
        """See :meth:`Provisioned.renew`."""
        assert isinstance(target, FakeTarget)
        self.target = target
        self._machines.renew(target)
