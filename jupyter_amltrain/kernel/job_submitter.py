"""Submits jobs, sweeps and measurements: checks them, plans them, and passes them to the queue. Loop thread only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from jupyter_amltrain.backends.base import Backend, LaunchPlan
from jupyter_amltrain.backends.environments import BuiltEnvironments, NamedEnvironments
from jupyter_amltrain.backends.provisioner import Provisioner, ProvisionState, RunPrice
from jupyter_amltrain.errors import AmlTrainError, SpecError
from jupyter_amltrain.jobs import team_server
from jupyter_amltrain.jobs.out_types import consent_notes
from jupyter_amltrain.jobs.scaling import ScalingPlan, check_job, slices_of
from jupyter_amltrain.jobs.sweep import capacity_of, check_trial, driver_of, fit_to, of_file, service_job
from jupyter_amltrain.kernel.environments import EnvironmentNames
from jupyter_amltrain.kernel.scaling import MeasuredMachine, ScalingDriver, machine_of
from jupyter_amltrain.kernel.submit_queue import SubmitQueue, plan_of
from jupyter_amltrain.kernel.target_file import LOCAL, TargetFile
from jupyter_amltrain.kernel.target_status import TargetStatusCache
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.plugins import parts
from jupyter_amltrain.schema.job import JobSpec, validated
from jupyter_amltrain.schema.run import RunHandle
from jupyter_amltrain.schema.sweep import Sweep
from jupyter_amltrain.text import new_run_id

#: Seconds in which a target must tell its GPUs and its price before a measurement begins without them.
MACHINE_TIMEOUT_S = 20.0
#: Seconds in which a target must tell how many trials it can run at the same time.
CAPACITY_TIMEOUT_S = 10.0


class JobSubmitter:
    """Submits jobs to targets.

    Parameters
    ----------
    backend
        Returns the backend of a target.
    names
        Names of the user's own environments.
    """

    def __init__(
        self,
        loop: LoopThread,
        targets: TargetFile,
        status: TargetStatusCache,
        backend: Callable[[str], Backend],
        names: EnvironmentNames,
        queue: SubmitQueue,
        scaling: ScalingDriver,
    ) -> None:
        self.loop, self._targets, self._status, self.backend = loop, targets, status, backend
        self._names, self._submit_queue, self._scaling = names, queue, scaling

    async def prepare(self, spec: JobSpec, target: str | None) -> tuple[str, JobSpec]:
        """Check `spec` and resolve its target; a plug-in may replace a file of ``az ml``. Sends nothing."""
        name = await self.target_name(target)
        if spec.job_type:
            for job_of_file in parts("job_of_file"):
                if (found := await job_of_file(self, spec, name)) is not None:
                    name, spec = found
                    break
        backend = self.backend(name)
        return name, await self.loop.offload(self._completed, validated(spec), backend)

    def _completed(self, spec: JobSpec, backend: Backend) -> JobSpec:
        """Return the job as its target runs it. Blocks on the disk, without network calls.

        Raises
        ------
        SpecError
            The target cannot run it.
        """
        if not spec.tracking_uri:
            uri, notes = team_server.of_environment()
            spec = msgspec.structs.replace(spec, tracking_uri=uri, notes=(*spec.notes, *notes))
        if isinstance(backend.environments, BuiltEnvironments):
            spec = self._names.resolve(spec)
        spec = backend.complete_spec(spec)
        backend.check_job(spec)
        if not backend.files.are_local:
            consent = consent_notes(spec, backend.target.name)
            spec = msgspec.structs.replace(spec, notes=tuple(dict.fromkeys((*spec.notes, *consent))))
        return spec

    async def target_name(self, target: str | None) -> str:
        """Return the target's name, or that of the target in use."""
        self.loop.check()
        if not target:
            await self._status.refresh()  # another kernel may have changed the current target
        name = target or self._status.current
        await self.loop.offload(self._targets.get, name)  # raises for a removed target, whose runs can only be read
        return name

    async def plan(self, spec: JobSpec, target: str | None = None) -> LaunchPlan:
        """Return the exact request that a submit would send. Sends nothing."""
        name, spec = await self.prepare(spec, target)
        backend = self.backend(name)
        plan = await plan_of(self.loop, spec, backend, new_run_id(spec.name))
        named = backend.environments
        described = None
        if isinstance(named, NamedEnvironments):
            described = await named.notes(plan.spec, plan.snapshot, plan.request)
        found = plan.notes if described is None else described
        notes, price = (*spec.notes, *found), await self.run_price(name, spec)
        more: dict[str, Any] = {"notes": list(notes)} if notes else {}
        more |= {"price": price.text} if price else {}
        return msgspec.structs.replace(plan, request={**plan.request, **more}) if more else plan

    async def submit(
        self,
        spec: JobSpec,
        target: str | None = None,
        environ: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        run_id: str = "",
    ) -> RunHandle:
        """Check a job, give it an id, and return its handle; a background task submits it.

        Parameters
        ----------
        run_id
            Id that the run gets; default: a new one. A run of this id that the target has already is not submitted
            again.
        """
        name, spec = await self.prepare(spec, target)
        return self._submit_queue.begin(self.backend(name), spec, dict(environ or {}), dict(secrets or {}), run_id)

    async def sweep_job(
        self, spec: JobSpec, sweep: Sweep, target: str | None = None, *, strict: bool = True
    ) -> tuple[str, JobSpec]:
        """Check a sweep over the job of a trial, or of a sweep file; return the target and the job. Sends nothing.

        Parameters
        ----------
        target
            A target, or several separated by commas, which share the trials.
        strict
            Refuse more trials at the same time than the target can run; otherwise their number is reduced.
        """
        if spec.job_type == "sweep":
            if "," not in (target or ""):
                name = await self.target_name(target)
                if self.backend(name).sweeps is not None:
                    return await self.prepare(spec, name)
            spec, sweep = await self.loop.offload(of_file, spec)
            strict = False  # the number of the file is for a service
        given = [name.strip() for name in (target or "").split(",")]
        names = list(dict.fromkeys(filter(None, given))) or [""]
        prepared = [await self.prepare(spec, name) for name in names]
        backends = [self.backend(name) for name, _ in prepared]
        native = next((backend for backend in backends if backend.sweeps is not None), None)
        if native is not None and len(backends) > 1:
            raise SpecError(
                f"{native.target.name!r} runs the trials of a sweep itself, so it cannot share them.",
                hint=f"Try: --target {native.target.name}",
                code="sweep.targets",
                field="target",
            )
        if native is not None and native.sweeps is not None:
            sweep = await self.loop.offload(native.sweeps.complete, sweep)
        name, trial = prepared[0]
        trial = trial if len(names) == 1 else validated(spec)  # the driver completes it for each target
        check_trial(trial, sweep)
        if native is not None:  # the service queues the trials
            _check_service_sweep(name, spec)
            return await self.prepare(service_job(trial, sweep), name)
        capacities = await asyncio.gather(*(self._capacity(backend, trial) for backend in backends))
        capacity = None if None in capacities else sum(filter(None, capacities))
        where = ",".join(name for name, _ in prepared)
        sweep, note = fit_to(sweep, capacity, where, strict=strict)
        trial = msgspec.structs.replace(trial, notes=(*trial.notes, note)) if note else trial
        slots = dict(zip(where.split(","), capacities, strict=True))
        return await self.prepare(driver_of(trial, sweep, where, slots), await self._driver_target(spec))

    async def _driver_target(self, spec: JobSpec) -> str:
        """Return the target that runs the driver of a sweep."""
        name = await self.target_name(spec.driver_target or LOCAL.name)
        if not self.backend(name).files.are_local:
            raise SpecError(
                f"--driver {name}: a driver needs the state folder of this computer, which {name!r} does not have.",
                hint="Leave it out: the driver runs on this computer, and goes on when it was asleep.",
                code="sweep.driver",
                field="driver_target",
            )
        return name

    async def _capacity(self, backend: Backend, trial: JobSpec) -> int | None:
        """Return how many trials a target runs at the same time; ``None`` if it does not say so soon."""
        with contextlib.suppress(AmlTrainError, asyncio.TimeoutError):
            return capacity_of(await asyncio.wait_for(backend.check(), CAPACITY_TIMEOUT_S), trial)
        return None

    async def submit_sweep(
        self,
        spec: JobSpec,
        sweep: Sweep,
        target: str | None = None,
        environ: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        *,
        strict: bool = True,
    ) -> RunHandle:
        """Check a sweep and return the handle of its run; a background task submits it."""
        name, job = await self.sweep_job(spec, sweep, target, strict=strict)
        return self._submit_queue.begin(self.backend(name), job, dict(environ or {}), dict(secrets or {}))

    async def slices(self, spec: JobSpec, plan: ScalingPlan, target: str | None) -> tuple[str, tuple[JobSpec, ...]]:
        """Check a measurement and return its target and the job of each width. Sends nothing."""
        check_job(spec, plan)
        name, _ = await self.prepare(spec, target)
        machine = await self._machine(name, spec)
        machine.check(plan, spec)
        jobs = slices_of(
            spec, plan, has_gpus=bool(machine.gpus), price=machine.price, currency=machine.currency,
            notes=machine.notes(plan),
        )  # fmt: skip
        return name, tuple([(await self.prepare(job, name))[1] for job in jobs])

    async def submit_scaling(
        self,
        spec: JobSpec,
        plan: ScalingPlan,
        target: str | None = None,
        environ: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> tuple[RunHandle, ...]:
        """Measure a job at several widths; returns the handles of their runs, of which the first starts now."""
        name, jobs = await self.slices(spec, plan, target)
        return self._scaling.begin(self.backend(name), jobs, dict(environ or {}), dict(secrets or {}))

    async def _machine(self, name: str, spec: JobSpec) -> MeasuredMachine:
        """Return what a measurement of a job must know of a target; unknown fields are ``None``."""
        status, backend = self._status, self.backend(name)

        async def read() -> None:
            if isinstance(backend, Provisioner):
                await backend.prepare()  # prices
            await status.check_now(name)

        with contextlib.suppress(AmlTrainError, asyncio.TimeoutError):
            await status.refresh()
            await asyncio.wait_for(read(), MACHINE_TIMEOUT_S)
        target = status.get(name)
        if target is not None and isinstance(backend, Provisioner) and target.state is not None:
            target = msgspec.structs.replace(target, state=backend.state_for(spec, target.state))
        return machine_of(name, target)

    async def run_price(self, name: str, spec: JobSpec) -> RunPrice | None:
        """Return the price of the machines of a run; ``None`` if nothing is charged or it is unknown."""
        status, backend = self._status, self.backend(name)
        if not isinstance(backend, Provisioner):
            return None
        target = status.get(name)
        if target is None or target.state is None:  # not listed so far
            with contextlib.suppress(AmlTrainError):
                await status.refresh()
                await status.check_now(name)
            target = status.get(name)
        state = None if target is None else target.state
        return backend.run_price(spec, state or ProvisionState())


def _check_service_sweep(name: str, spec: JobSpec) -> None:
    """Raise for what a target that runs the trials of a sweep itself does not do."""
    if spec.continues:
        raise SpecError(
            f"{name!r} runs sweeps itself, and does not continue one.",
            hint="Start a new sweep with the narrower space.",
            code="sweep.continue",
            field="continues",
        )
    if spec.driver_target not in ("", LOCAL.name):
        raise SpecError(
            f"--driver {spec.driver_target}: {name!r} runs sweeps itself, without a driver.",
            hint="Leave it out.",
            code="sweep.driver",
            field="driver_target",
        )
