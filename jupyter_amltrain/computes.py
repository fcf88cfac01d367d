"""What is done with compute targets: one work at a time for each, in the background. Runs on the loop.

Magics, command line and panel all come through :meth:`Computes.act`, so that they check, ask and
say the same. A target is stored before its service is asked to make it: nothing that costs is
forgotten when a kernel dies, or when nobody can tell what became of it. When the service refuses, it is
taken out of the store, and its failed row stays in this kernel's list until it is dismissed, deleted or
created again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.backends.lifecycle import Progress, Provisioned, ProvisionState
from jupyter_amltrain.backends.registry import forms, target_kinds
from jupyter_amltrain.errors import AmlTrainError, CommandError, CreateUnsure, TargetError
from jupyter_amltrain.spec.azure_target import GONE
from jupyter_amltrain.spec.target import ComputeTarget, LocalTarget
from jupyter_amltrain.spec.target_fields import NAME, checked, checked_scale, no_such
from jupyter_amltrain.target_list import removal
from jupyter_amltrain.target_rows import PAST, Seen, done_text, failed_text, info_text
from jupyter_amltrain.targets import LOCAL, stored
from jupyter_amltrain.works import PATIENCE, Done, Works

#: Prices and quotas are waited for so long before it is asked whether a target shall be made (seconds).
PRICES = 3.0


class Computes(Works):
    """The targets as this kernel sees them, and what it does with them."""

    async def act(
        self,
        verb: str,
        name: str = "",
        *,
        kind: str = "",
        values: Mapping[str, Any] | None = None,
        dry: bool = False,
        confirmed: bool = False,
    ) -> Done:
        """Do something with a target; what takes longer begins only.

        Parameters
        ----------
        verb
            ``use, test, create, attach, start, stop, restart, scale, delete, dismiss``.
        dry
            Only check, and tell what would be asked.
        confirmed
            A person has agreed to what it costs or loses.

        Raises
        ------
        CommandError
            It cannot be done now, whatever the values are.
        """
        await self.refresh()
        given = dict(values or {})
        if verb in ("create", "attach"):
            return await self._create(verb, name or str(given.get(NAME.name) or ""), kind, given, dry, confirmed)
        seen = self._seen.get(name)
        if seen is None:
            self._targets.get(name)  # names the near matches
            raise CommandError(f"{name!r} was removed just now.", hint="%aml_compute lists what there is.")
        if verb == "dismiss" or (verb == "delete" and not seen.stored):
            return self._dismiss(seen, dry)
        if not seen.stored and seen.work is not None:
            raise CommandError(failed_text("create", name, seen.work.error))
        if verb == "use" and not (seen.busy and seen.work is not None and seen.work.verb == "delete"):
            if not dry:
                await self.use(name)
            return Done(accepted=not dry, said=f"{name} is the target in use now, in every notebook.")
        self._free(seen)
        if verb == "test":
            return self._begin(seen, verb, lambda progress: self._test(name), given, dry)
        if verb not in PAST:
            raise CommandError(f"{verb!r} cannot be done with a target.", hint="See: %aml_compute?")
        return await self._provision(seen, verb, given, dry, confirmed)

    def _dismiss(self, seen: Seen, dry: bool) -> Done:
        self._free(seen)
        if dry:
            return Done()
        seen.work = None
        if not seen.stored:
            self._seen.pop(seen.target.name, None)
        self._tell()
        return Done(accepted=True, said="" if seen.stored else f"{seen.target.name} is deleted.")

    async def _create(
        self, verb: str, name: str, kind: str, values: dict[str, Any], dry: bool, confirmed: bool
    ) -> Done:
        there = {made.kind: made for made in forms() if made.verb == verb}
        if kind in GONE:
            raise CommandError(GONE[kind])
        if kind not in there:
            return Done(errors={"kind": no_such(kind, there, "kind of target")})
        target_type = next(made for made in target_kinds() if made.__struct_config__.tag == kind)
        target, wrong = checked(target_type, name, values)
        if target is None:
            return Done(errors=wrong)
        old = self._seen.get(name)
        if old is not None:
            self._free(old)
        if old is not None and old.stored:
            had = stored(old.target)
            # A target names the workspace that was the current one; who gives none means that.
            other = [k for k, v in stored(target).items() if v != had.get(k) and (v or k != "workspace")]
            if not {"kind", "workspace"} & set(other) and await self._was_deleted(name, dry):
                self._free(old)  # while we asked
                return await self._create_again(old, target, values, dry, confirmed)
            if not other:
                return Done(accepted=not dry, said=f"{name} is there already with these settings.")
            return Done(
                errors={
                    NAME.name: f"There is a target {name!r} already, with other settings ({', '.join(other)})."
                    " Choose another name, or delete it first."
                }
            )
        draft = self._places.draft(target)
        past = {gone.name: gone for gone in await self._loop.offload(self._targets.past)}.get(name)
        if past is not None and not (isinstance(draft, Provisioned) and draft.inherits(past)):
            return Done(errors={NAME.name: f"The runs of a deleted {name!r} are kept under that name. Choose another."})
        ask, wrong = await self._quoted(target, values, dry)
        now = self._seen.get(name)
        if now is not None and now is not old:  # somebody has begun the same in the meantime
            self._free(now)
        if wrong:
            return Done(errors=wrong)
        if dry or (ask and not confirmed):
            return Done(ask=ask)
        seen = Seen(target=target)
        self._seen[name] = seen
        kept = asyncio.Event()
        done = self._begin(seen, verb, lambda progress: self._make(seen, progress, kept), values, dry)
        await kept.wait()  # who is told that it is being made may use its name at once
        return done

    async def _was_deleted(self, name: str, dry: bool) -> bool:
        """Whether the service answers that it has no machines of a stored target: somebody else deleted them."""
        backend = self._places.backend(name)
        if not isinstance(backend, Provisioned):
            return False
        try:
            return await asyncio.wait_for(backend.is_gone(), PATIENCE if dry else PRICES)
        except (AmlTrainError, asyncio.TimeoutError):
            return False  # not known: it may be there, and bill

    async def _create_again(
        self, old: Seen, target: ComputeTarget, values: dict[str, Any], dry: bool, confirmed: bool
    ) -> Done:
        """Create what somebody else deleted, with the settings of `target`."""
        if (workspace := getattr(old.target, "workspace", "")) and not getattr(target, "workspace", ""):
            target = msgspec.structs.replace(target, workspace=workspace)
        ask, wrong = await self._quoted(target, values, dry)
        self._free(old)  # while we asked
        if wrong:
            return Done(errors=wrong)
        if dry or (ask and not confirmed):
            return Done(ask=ask)
        return self._begin(old, "create", lambda progress: self._make_again(old, target, progress), values, dry)

    async def _quoted(self, target: ComputeTarget, values: Mapping[str, Any], dry: bool) -> tuple[str, dict[str, str]]:
        """What creating a target costs, and what is wrong with its fields as far as the service is known."""
        draft = self._places.draft(target)
        if not isinstance(draft, Provisioned):
            return "", {}
        with contextlib.suppress(TargetError, asyncio.TimeoutError):
            await asyncio.wait_for(draft.prepare(), PATIENCE if dry else PRICES)
        wrong = draft.wrong()
        return ("", wrong) if wrong else (draft.asks("create", values, running=0), {})

    async def _make_again(self, seen: Seen, target: ComputeTarget, progress: Progress) -> None:
        """Create the machines of a target that is stored; when that fails, the target stays as it was."""
        backend, before = self._places.backend(seen.target.name), seen.target
        assert isinstance(backend, Provisioned)
        seen.state = None
        backend.renew(target)
        try:
            await backend.create(progress)
        except BaseException as error:
            if not isinstance(error, CreateUnsure):  # else it may be there with the new settings
                backend.renew(before)
            raise
        finally:
            if backend.target != before:
                seen.target = backend.target
                await self._write(self._targets.replace, backend.target)

    async def configure(self, name: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change settings of a target's queue; see :meth:`Backend.configure`."""
        await self.refresh()
        if name not in self._seen:
            self._targets.get(name)  # names the near matches
        return await self._places.backend(name).configure(settings)

    async def _make(self, seen: Seen, progress: Progress, kept: asyncio.Event) -> None:
        name = seen.target.name
        past: ComputeTarget | None = None
        try:
            try:
                past = {target.name: target for target in await self._loop.offload(self._targets.past)}.get(name)
                await self._write(self._targets.add, seen.target)
            finally:
                kept.set()
            if not self._places.renew(seen.target):  # of one that is gone but for its runs
                await self._forget(name, False)
            backend = self._places.backend(name)
            if isinstance(backend, Provisioned):
                try:
                    await backend.create(progress)
                finally:
                    if backend.target != seen.target:  # it names now what it left open
                        seen.target = backend.target
                        await self._write(self._targets.replace, backend.target)
            else:
                seen.info = await backend.check()
        except CreateUnsure:
            raise  # it may be there, and bill: it stays in the list, where it can be deleted
        except Exception:
            seen.stored = False
            # One that had this name before keeps its runs.
            await self._forget(name, past is not None and self._places.renew(past))
            await self._write(*((self._targets.remove, name) if past is None else (self._targets.restore, past)))
            raise

    async def _provision(self, seen: Seen, verb: str, values: dict[str, Any], dry: bool, confirmed: bool) -> Done:
        name, target = seen.target.name, seen.target
        backend = self._places.backend(name)
        own: Provisioned | None = backend if isinstance(backend, Provisioned) else None
        if own is not None and seen.state is None:
            try:
                seen.state = await asyncio.wait_for(own.state(), PATIENCE)
            except (AmlTrainError, asyncio.TimeoutError):
                pass  # then the work itself will find out
        self._free(seen)  # while we asked
        acts = {act.verb: act for act in own.acts(seen.state or ProvisionState())} if own is not None else {}
        forgets = verb == "delete" and own is None and not isinstance(target, LocalTarget)
        if verb not in acts and not forgets:
            can = ", ".join(["use", "test", *acts])
            raise CommandError(f"{name!r} does not support {verb}.", hint=f"Supported: {can}.")
        fields = acts[verb].fields if verb in acts else ()
        known = [field.name for field in fields]
        alias = ("nodes",) if verb == "scale" else ()  # of min_nodes
        wrong = {k: no_such(k, known, "field") for k in values if k not in (*known, *alias)}
        if verb == "scale" and not wrong:
            values, wrong = checked_scale(target, acts[verb].fields, values)
        if wrong:
            return Done(errors=wrong)
        if forgets or own is None:
            ask = removal(name)
        elif acts[verb].why_not:
            why = acts[verb].why_not
            raise CommandError(f"{name}: {why[:1].lower()}{why[1:]}")
        else:
            running, queued = self._counts()
            ask = own.asks(verb, values, running=running[name], queued=queued[name])
        if dry or (ask and not confirmed):
            return Done(ask=ask)
        return self._begin(seen, verb, lambda progress: self._carry_out(seen, own, verb, values, progress), values, dry)

    async def _carry_out(
        self, seen: Seen, own: Provisioned | None, verb: str, values: dict[str, Any], progress: Progress
    ) -> str | None:
        if verb == "delete":
            if own is not None:
                await own.remove(progress)
            past, used = own is not None and own.outlived, self._current == seen.target.name
            await self._write(functools.partial(self._targets.remove, past=past), seen.target.name)
            await self._forget(seen.target.name, past)
            seen.stored = False
            # Else the next cell would run here, and nobody had been told.
            return f"{done_text(verb, seen.target.name, values)} In use now: {LOCAL.name}." if used else None
        assert own is not None
        if verb == "scale":
            await own.scale(values, progress)
        else:
            await {"start": own.start, "stop": own.stop, "restart": own.restart}[verb](progress)
        if own.target != seen.target:
            seen.target = own.target
            await self._write(self._targets.replace, own.target)
        return None

    async def _test(self, name: str) -> str:
        return info_text(await self._check(name))
