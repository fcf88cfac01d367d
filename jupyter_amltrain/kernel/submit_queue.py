"""Queue of submits: a task per job packs it, plans it and sends it to its target. Loop thread only."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from jupyter_amltrain.backends.base import Backend, LaunchPlan
from jupyter_amltrain.errors import AmlTrainError, CommandError, SubmitUnsure
from jupyter_amltrain.jobs import left_out
from jupyter_amltrain.jobs.launch import shared_gpu_note
from jupyter_amltrain.jobs.origin import origin_of
from jupyter_amltrain.jobs.snapshot import Snapshot, of_script, of_yaml
from jupyter_amltrain.jobs.tracking_uri import elsewhere_note
from jupyter_amltrain.kernel.store import RunStore
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunHandle, RunState, RunStatus, make_handle
from jupyter_amltrain.text import new_run_id

log = logging.getLogger(__name__)

#: Seconds between two updates of a row while the files of its run are sent.
PROGRESS_INTERVAL_S = 0.5
#: Time after which the row of a run notes that its target has not accepted it yet.
SLOW_SUBMIT_NOTICE_S = 8.0


async def snapshot_of(loop: LoopThread, spec: JobSpec, backend: Backend) -> Snapshot:
    """Collect the files of a job, off the loop."""
    if spec.job_type:
        return await loop.offload(lambda: of_yaml(spec, code=not backend.files.sends_code))
    return await loop.offload(of_script, spec)


async def plan_of(loop: LoopThread, spec: JobSpec, backend: Backend, run_id: str) -> LaunchPlan:
    """Plan a job with its files, which may take a while, and note the data and the GPUs that they lack."""
    snapshot = await snapshot_of(loop, spec, backend)
    plan = await backend.plan(spec, snapshot, run_id)
    ignored = await loop.offload(left_out.note_of, spec.source, snapshot.left_out) if spec.source else ""
    elsewhere = ""
    if not spec.job_type:  # the text of a cell is at hand, a file is not
        follows = "tracking" in plan.request  # the agent of this package runs the job
        elsewhere = elsewhere_note(spec, follows) if spec.script else await loop.offload(elsewhere_note, spec, follows)
    more = tuple(note for note in (ignored, shared_gpu_note(spec), elsewhere) if note)
    return msgspec.structs.replace(plan, notes=(*plan.notes, *more)) if more else plan


class SubmitQueue:
    """Runs one task per job until its target has accepted or rejected it.

    Parameters
    ----------
    done
        Called with the handle when the target has accepted or rejected the run.
    """

    def __init__(self, loop: LoopThread, store: RunStore, done: Callable[[RunHandle], None]) -> None:
        self._loop, self._store, self._done = loop, store, done
        self._tasks: dict[RunHandle, asyncio.Task[None]] = {}
        self._errors: dict[RunHandle, Exception] = {}

    def begin(
        self, backend: Backend, spec: JobSpec, environ: dict[str, str], secrets: dict[str, str], run_id: str = ""
    ) -> RunHandle:
        """Assign an id to a checked job, unless it has one, and start its task."""
        run = self.reserve(backend, spec, secrets, run_id=run_id)
        self.start(backend, run, environ, secrets)
        return run.handle

    def reserve(
        self, backend: Backend, spec: JobSpec, secrets: dict[str, str], detail: str = "", run_id: str = ""
    ) -> Run:
        """Assign an id to a checked job, and list it as preparing."""
        missing = [s for s in spec.secrets if s not in secrets]
        if missing:
            raise CommandError(
                f"--secret {missing[0]}: no value found.",
                hint=f"Set it in the kernel's environment or keyring: %env {missing[0]}=...",
            )
        run = Run(
            handle=make_handle(backend.target.name, run_id or new_run_id(spec.name)),
            spec=spec,
            status=RunStatus(state=RunState.PREPARING, detail=detail),
            created=time.time(),
            project=spec.project,
        )
        self._store.put(run)
        return run

    def start(self, backend: Backend, run: Run, environ: dict[str, str], secrets: dict[str, str]) -> None:
        """Start the task of `run`, which the store already lists as preparing."""
        task = self._loop.start(self._submit(backend, run, environ, secrets), f"launch {run.handle}")
        self._tasks[run.handle] = task

    async def accepted(self, handle: RunHandle) -> None:
        """Wait until the target has accepted the run; raise its error if it rejected the run."""
        if task := self._tasks.get(handle):
            await asyncio.shield(task)
        entry = self._store.get(handle)
        if (error := self._errors.get(handle)) and (entry is None or not entry.run.folder):
            raise error

    async def _launch(
        self, backend: Backend, plan: LaunchPlan, handle: RunHandle, environ: dict[str, str], secrets: dict[str, str]
    ) -> Run | None:
        """Launch the run; its row shows the progress. Returns ``None`` if it was canceled before the target had it."""
        begun = time.monotonic()
        task = asyncio.ensure_future(backend.launch(plan, environ, secrets))
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=PROGRESS_INTERVAL_S)
                entry = self._store.get(handle)
                if task.done() or entry is None:
                    continue
                progress = backend.files.sending(plan.run_id)
                if progress and entry.run.cancel_requested:
                    return None
                if not progress and time.monotonic() - begun > SLOW_SUBMIT_NOTICE_S:
                    progress = f"'{entry.run.target}' has not accepted the run yet; still trying"
                if progress and progress != entry.run.status.detail and not entry.run.status.state.terminal:
                    self._store.amend(handle, status=msgspec.structs.replace(entry.run.status, detail=progress))
            return task.result()
        finally:
            task.cancel()

    async def _submit(self, backend: Backend, run: Run, environ: dict[str, str], secrets: dict[str, str]) -> None:
        handle = run.handle
        try:
            plan, origin = await asyncio.gather(
                plan_of(self._loop, run.spec, backend, run.run_id), self._loop.offload(origin_of, run.spec)
            )
            plan = msgspec.structs.replace(plan, origin=origin)
            if plan.notes:  # before anything is sent
                self._store.amend(handle, notes=plan.notes)
            launched = await self._launch(backend, plan, handle, environ, secrets)
        except Exception as error:  # after any error the run must not stay "preparing"
            if not isinstance(error, AmlTrainError):
                log.exception("launch of %s failed", handle)
            status = RunStatus(state=RunState.FAILED, reason="launch", detail=f"{error}", version=1)
            message = f"{error}" if isinstance(error, SubmitUnsure) else f"{handle} was not submitted: {error}"
            self._store.amend(handle, status=status, error=message)
            # Without its frames, which contain the environment and the secrets.
            self._errors[handle] = error.with_traceback(None)
        else:
            entry = self._store.get(handle)
            if entry is None:  # its target was deleted in the meantime
                return
            if launched is None:
                detail = "canceled before its files were sent"
                status = RunStatus(state=RunState.CANCELED, reason="canceled", detail=detail, version=1)
                self._store.amend(handle, status=status)
            else:
                canceled = entry.run.cancel_requested
                self._store.put(msgspec.structs.replace(launched, created=run.created))
                if canceled:  # requested during the submit
                    await backend.cancel(run.run_id)
        finally:
            self._tasks.pop(handle, None)
        if self._store.get(handle) is not None:
            self._done(handle)
