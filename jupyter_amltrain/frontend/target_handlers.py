"""Operations on targets and workspaces, and on the forms that submit a job or connect a workspace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from jupyter_amltrain.backends.ssh_login import config_hosts
from jupyter_amltrain.backends.target_kinds import forms
from jupyter_amltrain.commands.compute import line_of
from jupyter_amltrain.commands.forms import compose as compose_submit_line
from jupyter_amltrain.commands.forms import submit_fields
from jupyter_amltrain.commands.magic_line import quote, unexpanded
from jupyter_amltrain.commands.submit import Defaults
from jupyter_amltrain.errors import AmlTrainError, CommandError, UnknownTarget
from jupyter_amltrain.frontend.protocol import Reply, Request, op
from jupyter_amltrain.plugins import parts
from jupyter_amltrain.schema.fields import Field, TargetKind, kind_of_type
from jupyter_amltrain.schema.ssh_target import SshTarget

if TYPE_CHECKING:
    from jupyter_amltrain.kernel.controller import Controller

#: Maximum wait of a reply for a disconnect, which may have to start the service process (seconds).
DISCONNECT_TIMEOUT_S = 2.0

#: Kind of a machine over SSH.
_SSH = kind_of_type(SshTarget).kind


class ActOnTarget(Request, frozen=True, kw_only=True):
    """Run an action on a target; the same as ``%aml_compute <verb>``.

    Attributes
    ----------
    target
        Name of the target; for the verb ``disconnect`` the name of a workspace.
    kind
        For ``create`` and ``attach``; else empty.
    values
        Values by field name; an absent field has its default.
    dry
        Only check the values.
    confirmed
        The user has confirmed the cost or loss of the action.
    """

    verb: str
    target: str
    kind: str = ""
    values: dict[str, Any] = {}
    dry: bool = False
    confirmed: bool = False


class TargetActionReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`ActOnTarget`.

    Attributes
    ----------
    accepted
        The action is done, or has started: then the target's row shows its progress in ``work``.
    confirmation
        Not accepted: text that the user has to confirm first.
    errors
        Not accepted: errors by field; the key ``""`` is for errors of the whole form.
    message
        The text that the magic would print; empty for an action that is still in progress.
    line
        The magic that does the same, for example ``%aml_compute scale big --nodes 4``.
    """

    accepted: bool
    confirmation: str = ""
    errors: dict[str, str] = {}
    message: str = ""
    line: str = ""


class TargetCheck(Request, frozen=True, kw_only=True):
    """Read how a target and its GPUs are used now; its row shows the result, or the error."""

    target: str


class TargetCheckReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`TargetCheck`, after the row has changed."""


class TargetHandlers:
    """Handler of actions on targets and workspaces."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    @op("check")
    async def check(self, request: TargetCheck) -> TargetCheckReply:
        """Check a target that somebody looks at."""
        await self._controller.target_manager.status.try_check(request.target)
        return TargetCheckReply()

    @op("act")
    async def act(self, request: ActOnTarget) -> TargetActionReply:
        """Check an action, ask for confirmation, or start it."""
        if request.verb == "disconnect":
            return await self._disconnect(request)
        line = line_of(request.verb, request.target, request.kind, request.values)
        try:
            result = await self._controller.target_manager.run_action(
                request.verb,
                request.target,
                kind=request.kind,
                values=request.values,
                dry=request.dry,
                confirmed=request.confirmed,
            )
        except CommandError as error:
            return TargetActionReply(accepted=False, errors={"": str(error)}, line=line)
        asks = bool(result.confirmation) or (result.accepted and request.confirmed)
        return TargetActionReply(
            accepted=result.accepted,
            confirmation=result.confirmation,
            errors=result.errors,
            message=result.message,
            line=f"{line} --yes" if line and asks else line,
        )

    async def _disconnect(self, request: ActOnTarget) -> TargetActionReply:
        """Disconnect a workspace after confirmation; the same as ``%aml_compute disconnect``."""
        controller, name = self._controller, request.target
        workspaces = controller.workspaces
        line = f"%aml_compute disconnect {quote(name)} --yes"
        try:
            if request.dry or not request.confirmed:
                return TargetActionReply(accepted=False, confirmation=await workspaces.loss(name), line=line)
            task = controller.loop.start(workspaces.disconnect(name, confirmed=True), f"disconnect {name}")
            await asyncio.wait({task}, timeout=DISCONNECT_TIMEOUT_S)
            message = task.result() if task.done() else f"Disconnecting {name}."
        except AmlTrainError as error:
            return TargetActionReply(accepted=False, errors={"": str(error)}, line=line)
        return TargetActionReply(accepted=True, message=message, line=line)


# ---- forms


class GetForms(Request, frozen=True):
    """Get the forms for every kind of target, for a submit, and for a connection to a workspace."""


class KindsReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`GetForms`."""

    kinds: tuple[TargetKind, ...]
    submit: tuple[Field, ...]
    connect: tuple[Field, ...] = ()


class ComposeSubmit(Request, frozen=True, kw_only=True):
    """Write or read a submit line, and check it as the magic would; submits nothing.

    Attributes
    ----------
    old
        The line that exists already (``%%aml_submit ...`` or ``%aml_submit ...``); empty for none.
    cell
        The code below the line; ``None`` for the line form.
    script
        Path of a ``.py`` file for the line form, relative to `folder`.
    folder
        Folder of the notebook relative to the server's root; only to name files in messages.
    values
        By name of a submit field; empty values are left out of the line. ``None``: only read `old`.
    """

    old: str = ""
    cell: str | None = None
    script: str = ""
    folder: str = ""
    values: dict[str, Any] | None = None


class ComposeReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`ComposeSubmit`.

    Attributes
    ----------
    line
        The new line; keeps flags of the old line that have no field.
    values
        Values of the line, by name of a submit field.
    errors
        By name of a field; the key ``""`` is about the line or the code below it.
    notes
        Remarks that do not prevent the submit, one sentence each.
    """

    line: str
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    notes: tuple[str, ...] = ()


class FormHandlers:
    """Handlers of forms and of the lines that forms write.

    Parameters
    ----------
    defaults
        Returns the values of flags that a submit line does not set.
    """

    def __init__(self, controller: Controller, defaults: Callable[[], Defaults]) -> None:
        self._controller, self._defaults = controller, defaults

    @op("kinds")
    async def get_forms(self, request: GetForms) -> KindsReply:
        """Return all forms."""
        workspaces = self._controller.workspaces
        connect = next((fields() for fields in parts("connect_form")), ())
        kinds = sorted_kinds(forms(), [row.name for row in await workspaces.rows(())])
        kinds = with_ssh_hosts(kinds, await self._controller.loop.offload(config_hosts))
        return KindsReply(kinds=kinds, submit=submit_fields(self._defaults()), connect=connect)

    @op("compose")
    async def compose_submit(self, request: ComposeSubmit) -> ComposeReply:
        """Write or read a submit line, and check it."""
        return await self._controller.loop.offload(self._composed, request)

    def _composed(self, request: ComposeSubmit) -> ComposeReply:
        """Compose a line; reads files and parses code, so it must not run on the loop."""
        defaults = self._defaults()
        result = compose_submit_line(
            request.old, request.values, cell=request.cell, script=request.script, defaults=defaults
        )
        target = result.values.get("target") or defaults.target
        if target and "target" not in result.errors and not unexpanded([target]):
            try:
                self._controller.targets.get(target)
            except UnknownTarget as error:
                result.errors["target"] = str(error)
        return ComposeReply(line=result.line, values=result.values, errors=result.errors, notes=result.notes)


def sorted_kinds(kinds: Sequence[TargetKind], workspaces: Sequence[str]) -> tuple[TargetKind, ...]:
    """Return the kinds of targets, those of a connected workspace first.

    The field ``workspace`` offers the connected ones; it is an advanced field while there is only one.
    """
    if not workspaces:
        return tuple(kinds)
    adapted = []
    for kind in kinds:
        change = {"advanced": True} if len(workspaces) == 1 else {"choices": ("", *workspaces)}
        fields = [replace(field, **change) if field.name == "workspace" else field for field in kind.fields]
        adapted.append(replace(kind, fields=tuple(fields)))
    return tuple(sorted(adapted, key=lambda kind: not any(field.name == "workspace" for field in kind.fields)))


def with_ssh_hosts(kinds: Sequence[TargetKind], hosts: Sequence[str]) -> tuple[TargetKind, ...]:
    """Return the kinds of targets; the form of a machine over SSH wants a host, and offers the known ones."""
    adapted = []
    for kind in kinds:
        fields = kind.fields
        if kind.kind == _SSH:
            change = {"choices": tuple(hosts), "required": True}
            fields = tuple(replace(field, **change) if field.name == "host" else field for field in fields)
        adapted.append(replace(kind, fields=fields))
    return tuple(adapted)
