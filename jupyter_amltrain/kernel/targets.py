"""Actions on compute targets: use, test, create, start, scale, delete and the others. Loop thread only.

Magics, command line and panel all call :meth:`TargetManager.run_action`: checks, prompts and messages are the same
everywhere. A target is stored before the request that creates it: a machine that costs money stays in the list
when the kernel dies, or when the result of the request is unknown. When the service rejects the request, the target is
removed from the store, and its failed row stays in this kernel's list until it is dismissed, deleted or created again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from jupyter_amltrain.backends.provisioner import Progress, Provisioner, ProvisionState
from jupyter_amltrain.backends.target_kinds import forms, target_kinds
from jupyter_amltrain.errors import AmlTrainError, CommandError, CreateUnsure, TargetError
from jupyter_amltrain.kernel.backend_pool import BackendPool
from jupyter_amltrain.kernel.operations import STATUS_TIMEOUT_S, ActionResult, TargetOperations
from jupyter_amltrain.kernel.store import RunStore
from jupyter_amltrain.kernel.target_file import LOCAL, TargetFile, stored_fields
from jupyter_amltrain.kernel.target_status import (
    PARTICIPLES,
    TargetEntry,
    TargetStatusCache,
    accept_confirmation,
    accepted_values,
    detach_confirmation,
    done_text,
    failed_text,
    info_text,
    use_text,
)
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.plugins import parts
from jupyter_amltrain.schema.fields import NAME, checked_scale, checked_target, unknown_name_text
from jupyter_amltrain.schema.target import ComputeTarget, ForeignTarget, LocalTarget

#: Maximum wait for prices and quotas before the user is prompted to confirm a new target.
PRICES_TIMEOUT_S = 3.0


class TargetManager:
    """Actions on compute targets: the rules of each, their status and their operations.

    Attributes
    ----------
    status
        Status of each target.
    operations
        Running operation of each target.

    Parameters
    ----------
    forget
        As :class:`~jupyter_amltrain.kernel.target_status.TargetStatusCache` takes it.
    """

    def __init__(
        self,
        loop: LoopThread,
        targets: TargetFile,
        places: BackendPool,
        store: RunStore,
        forget: Callable[[str, bool], Coroutine[Any, Any, None]],
    ) -> None:
        self._loop, self._targets, self._backends = loop, targets, places
        self.status = TargetStatusCache(loop, targets, places, store, forget)
        self.operations = TargetOperations(loop, self.status)

    async def configure(self, name: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change settings of a target; see :meth:`TargetSettings.change`."""
        await self.status.refresh()
        entry, backend = self.status.find(name), self._backends.backend(name)
        result = await backend.settings.change(settings)
        if backend.target != entry.target:
            entry.target = backend.target
            await self.status.save(self._targets.replace, backend.target)
        return result

    # ---- actions

    async def run_action(
        self,
        verb: str,
        name: str = "",
        *,
        kind: str = "",
        values: Mapping[str, Any] | None = None,
        dry: bool = False,
        confirmed: bool = False,
    ) -> ActionResult:
        """Run an action on a target; long ones are started in the background.

        Parameters
        ----------
        verb
            ``use, test, create, attach, start, stop, restart, scale, delete, dismiss``, and ``accept``: repeats an
            attach that failed because of something that the user has to accept, such as an unknown host key.
        dry
            Only check the values, and return the confirmation prompt.
        confirmed
            Whether the user has confirmed the cost or loss.

        Raises
        ------
        CommandError
            The action is not possible now, with any values.
        """
        await self.status.refresh()
        values = dict(values or {})
        if verb in ("create", "attach"):
            return await self._create(verb, name or str(values.get(NAME.name) or ""), kind, values, dry, confirmed)
        entry = self.status.find(name)
        if verb == "dismiss" or (verb == "delete" and not entry.stored):
            return self._dismiss(entry, dry)
        if verb == "accept" and (accepted := accepted_values(entry)):
            return await self._accept(entry, accepted, dry, confirmed)
        if not entry.stored and entry.work is not None:
            self.operations.require_idle(entry)
            if entry.failure is not None:
                raise CommandError(failed_text("create", name, entry.failure))
        if verb == "use" and not (entry.busy and entry.work is not None and entry.work.verb == "delete"):
            return await self._use(name, bool(values.get("default")), dry)
        self.operations.require_idle(entry)
        if verb == "test" and dry:
            return ActionResult()
        if verb == "test":
            return self.operations.start(entry, verb, lambda progress: self._test(name), values)
        if verb not in PARTICIPLES:
            raise CommandError(f"{verb!r} is not an action on a target.", hint="See: %aml_compute?")
        return await self._provision(entry, verb, values, dry, confirmed)

    async def _use(self, name: str, default: bool, dry: bool) -> ActionResult:
        if not dry:
            await self.status.use(name, default=default)
        return ActionResult(accepted=not dry, message=use_text(name, default=default))

    async def _test(self, name: str) -> str:
        return info_text(await self.status.check_now(name))

    async def _accept(
        self, entry: TargetEntry, accepted: Mapping[str, Any], dry: bool, confirmed: bool
    ) -> ActionResult:
        """Repeat an attach with what the user has accepted."""
        if not confirmed:
            return ActionResult(confirmation="" if dry else accept_confirmation(entry))
        fields = {**stored_fields(entry.target), **accepted}
        kind = str(fields.pop("kind"))
        return await self._create("attach", entry.target.name, kind, fields, dry, confirmed)

    def _dismiss(self, entry: TargetEntry, dry: bool) -> ActionResult:
        self.operations.require_idle(entry)
        if dry:
            return ActionResult()
        entry.work = None
        if not entry.stored:
            self.status.discard(entry.target.name)
        self.status.notify()
        return ActionResult(accepted=True, message="" if entry.stored else f"{entry.target.name} is deleted.")

    # ---- create

    async def _create(
        self, verb: str, name: str, kind: str, values: dict[str, Any], dry: bool, confirmed: bool
    ) -> ActionResult:
        kinds = {form.kind: form for form in forms() if form.verb == verb}
        for retired in parts("retired_kinds"):
            if kind in retired:
                raise CommandError(retired[kind])
        if kind not in kinds:
            names = ", ".join(kinds)
            error = unknown_name_text(kind, kinds, "kind of target") if kind else f"Say which kind: {names}."
            return ActionResult(errors={"kind": error})
        target_type = next(one for one in target_kinds() if one.__struct_config__.tag == kind)
        target, errors = checked_target(target_type, name, values)
        if target is None:
            return ActionResult(errors=errors)
        old = self.status.get(name)
        if old is not None:
            self.operations.require_idle(old)
        if old is not None and old.stored:
            return await self._create_stored(old, target, values, dry, confirmed)
        draft, retired = self._backends.draft(target), await self._retired(name)
        if retired is not None and not (isinstance(draft, Provisioner) and draft.adopts_runs_of(retired)):
            return ActionResult(
                errors={NAME.name: f"The runs of a deleted {name!r} are kept under that name. Choose another."}
            )
        ask, errors = await self._quote(target, values, dry)
        now = self.status.get(name)
        if now is not None and now is not old:  # another call has started the same operation in the meantime
            self.operations.require_idle(now)
        if errors or dry or (ask and not confirmed):
            return ActionResult(confirmation=ask, errors=errors)
        entry = TargetEntry(target=target)
        self.status.put(entry)
        saved = asyncio.Event()
        done = self.operations.start(
            entry, verb, lambda progress: self._create_machines(entry, progress, saved), values
        )
        await saved.wait()  # the name is usable as soon as the caller has the reply
        return done

    async def _create_stored(
        self, old: TargetEntry, target: ComputeTarget, values: dict[str, Any], dry: bool, confirmed: bool
    ) -> ActionResult:
        """Create a target whose name exists, if its machines were deleted elsewhere; otherwise report the conflict."""
        name, before = target.name, stored_fields(old.target)
        # A stored target names its workspace, for example; values without a workspace mean the same one.
        differing = [
            k for k, v in stored_fields(target).items() if v != before.get(k) and (v or k not in target.filled_in)
        ]
        if not {"kind", "workspace"} & set(differing) and await self._was_deleted(name, dry):
            self.operations.require_idle(old)  # something may have started while the service was asked
            return await self._recreate(old, target, values, dry, confirmed)
        if not differing:
            return ActionResult(accepted=not dry, message=f"{name} already exists with these settings.")
        return ActionResult(
            errors={
                NAME.name: f"A target {name!r} already exists with other settings ({', '.join(differing)})."
                " Choose another name, or delete it first."
            }
        )

    async def _retired(self, name: str) -> ComputeTarget | None:
        """Return the removed target of this name whose runs are kept, if any."""
        past = await self._loop.offload(self._targets.retired)
        return next((target for target in past if target.name == name), None)

    async def _was_deleted(self, name: str, dry: bool) -> bool:
        """Whether the service reports that the machines of a stored target were deleted elsewhere."""
        backend = self._backends.backend(name)
        if not isinstance(backend, Provisioner):
            return False
        try:
            return await asyncio.wait_for(backend.is_gone(), STATUS_TIMEOUT_S if dry else PRICES_TIMEOUT_S)
        except (AmlTrainError, asyncio.TimeoutError):
            return False  # unknown: it may exist, and cost money

    async def _recreate(
        self, old: TargetEntry, target: ComputeTarget, values: dict[str, Any], dry: bool, confirmed: bool
    ) -> ActionResult:
        """Create machines that were deleted elsewhere, with the settings of `target`."""
        if (workspace := getattr(old.target, "workspace", "")) and not getattr(target, "workspace", ""):
            target = msgspec.structs.replace(target, workspace=workspace)
        ask, errors = await self._quote(target, values, dry)
        self.operations.require_idle(old)  # something may have started while the service was asked
        if errors or dry or (ask and not confirmed):
            return ActionResult(confirmation=ask, errors=errors)
        return self.operations.start(
            old, "create", lambda progress: self._recreate_machines(old, target, progress), values
        )

    async def _quote(self, target: ComputeTarget, values: Mapping[str, Any], dry: bool) -> tuple[str, dict[str, str]]:
        """Return the confirmation prompt for creating a target, or the errors of its fields."""
        draft = self._backends.draft(target)
        if not isinstance(draft, Provisioner):
            return "", {}
        with contextlib.suppress(TargetError, asyncio.TimeoutError):
            await asyncio.wait_for(draft.prepare(), STATUS_TIMEOUT_S if dry else PRICES_TIMEOUT_S)
        errors = draft.field_errors()
        return ("", errors) if errors else (draft.confirmation("create", values, running=0), {})

    async def _create_machines(self, entry: TargetEntry, progress: Progress, saved: asyncio.Event) -> str | None:
        """Store a target and create its machines; a failure restores the stored targets. Return a message, if any."""
        name = entry.target.name
        retired: ComputeTarget | None = None
        try:
            try:
                retired = await self._retired(name)
                await self.status.save(self._targets.add, entry.target)
            finally:
                saved.set()
            if not self._backends.renew(entry.target):  # a live backend of a removed target that kept its runs
                await self.status.forget(name, False)
            backend = self._backends.backend(name)
            if isinstance(backend, Provisioner):
                try:
                    await backend.create(progress)
                finally:
                    if backend.target != entry.target:  # the backend has filled in defaults
                        entry.target = backend.target
                        await self.status.save(self._targets.replace, backend.target)
            else:
                entry.info = await backend.check()
                if backend.target != entry.target:  # the backend has filled in what the machine says
                    entry.target = backend.target
                    await self.status.save(self._targets.replace, backend.target)
                if entry.info.stops:
                    return f"{done_text('attach', name, {})} It {entry.info.stops}"
        except CreateUnsure:
            raise  # the target may exist and cost money: it stays in the list, where it can be deleted
        except Exception:  # undo the creation after any error, and raise it again
            entry.stored = False
            # An earlier target of this name keeps its runs.
            await self.status.forget(name, retired is not None and self._backends.renew(retired))
            if retired is None:
                await self.status.save(self._targets.remove, name)
            else:
                await self.status.save(self._targets.restore, retired)
            raise
        return None

    async def _recreate_machines(self, entry: TargetEntry, target: ComputeTarget, progress: Progress) -> None:
        """Create the machines of a stored target; a failure leaves the target unchanged."""
        backend, before = self._backends.backend(entry.target.name), entry.target
        assert isinstance(backend, Provisioner)
        entry.state = None
        backend.renew(target)
        try:
            await backend.create(progress)
        except BaseException as error:  # undo the change after any error, and raise it again
            if not isinstance(error, CreateUnsure):  # otherwise it may exist with the new settings
                backend.renew(before)
            raise
        finally:
            if backend.target != before:
                entry.target = backend.target
                await self.status.save(self._targets.replace, backend.target)

    # ---- start, stop, restart, scale, delete

    async def _provision(
        self, entry: TargetEntry, verb: str, values: dict[str, Any], dry: bool, confirmed: bool
    ) -> ActionResult:
        name, target = entry.target.name, entry.target
        # A target whose package is not installed can still be removed from the list.
        backend = None if isinstance(target, ForeignTarget) and verb == "delete" else self._backends.backend(name)
        provisioner: Provisioner | None = backend if isinstance(backend, Provisioner) else None
        if provisioner is not None and entry.state is None:
            with contextlib.suppress(AmlTrainError, asyncio.TimeoutError):  # else the operation reports it
                entry.state = await asyncio.wait_for(provisioner.state(), STATUS_TIMEOUT_S)
        self.operations.require_idle(entry)  # something may have started while the service was asked
        acts = (
            {act.verb: act for act in provisioner.actions(entry.state or ProvisionState())}
            if provisioner is not None
            else {}
        )
        detach = verb == "delete" and provisioner is None and not isinstance(target, LocalTarget)
        if verb not in acts and not detach:
            supported = ", ".join(["use", "test", *acts])
            raise CommandError(
                f"Target {name!r} does not support {verb}.",
                hint=f"Supported: {supported}.",
                code="target.unsupported_verb",
            )
        fields = acts[verb].fields if verb in acts else ()
        known = [field.name for field in fields]
        alias = ("nodes",) if verb == "scale" else ()  # alias of min_nodes
        errors = {k: unknown_name_text(k, known, "field") for k in values if k not in (*known, *alias)}
        if verb == "scale" and not errors:
            values, errors = checked_scale(target, acts[verb].fields, values)
        if errors:
            return ActionResult(errors=errors)
        if detach or provisioner is None:
            ask = detach_confirmation(name)
        elif acts[verb].disabled_reason:
            reason = acts[verb].disabled_reason
            raise CommandError(f"{name}: {reason[:1].lower()}{reason[1:]}")
        else:
            running, queued = self.status.run_counts()
            ask = provisioner.confirmation(verb, values, running=running[name], queued=queued[name])
        if dry or (ask and not confirmed):
            return ActionResult(confirmation=ask)
        return self.operations.start(
            entry, verb, lambda progress: self._run_action(entry, provisioner, verb, values, progress), values
        )

    async def _run_action(
        self, entry: TargetEntry, provisioner: Provisioner | None, verb: str, values: dict[str, Any], progress: Progress
    ) -> str | None:
        if verb == "delete":
            return await self._delete(entry, provisioner, progress)
        assert provisioner is not None
        if verb == "scale":
            await provisioner.scale(values, progress)
        else:
            await {"start": provisioner.start, "stop": provisioner.stop, "restart": provisioner.restart}[verb](progress)
        if provisioner.target != entry.target:
            entry.target = provisioner.target
            await self.status.save(self._targets.replace, provisioner.target)
        return None

    async def _delete(self, entry: TargetEntry, provisioner: Provisioner | None, progress: Progress) -> str | None:
        name = entry.target.name
        if provisioner is not None:
            await provisioner.remove(progress)
        keeps_runs, was_current = provisioner is not None and provisioner.keeps_history, self.status.current == name
        await self.status.save(functools.partial(self._targets.remove, past=keeps_runs), name)
        await self.status.forget(name, keeps_runs)
        entry.stored = False
        # Without this sentence the next cell would run on another target unannounced.
        return f"{done_text('delete', name, {})} New runs now go to {LOCAL.name}." if was_current else None
