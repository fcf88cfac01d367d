"""Frontend protocol: the registry of operations, and the events.

The page sends ``amltrain_request`` on the kernel's control channel and receives ``amltrain_reply``;
both have :data:`VERSION`. The kernel sends events on a comm, in this direction only: the client chooses the comm's
id and opens it by the operation ``events``.

An operation is a request Struct, a reply Struct and a method with the decorator :func:`op`, all in one
module. Decoding and dispatch use :data:`OPERATIONS`, and so does the generator of the TypeScript in
``labextension/src/protocol.ts`` (``python -m tools.protocol_types``).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec

from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.schema.rows import RunRow, TargetRow, WorkspaceRow

#: Version of the protocol: incremented by every incompatible change.
VERSION = 4
#: Message types on the control channel.
REQUEST, REPLY = "amltrain_request", "amltrain_reply"
#: Name of the events' comm target; the kernel has no handler for it.
EVENTS = "amltrain_events"


# ---- operations


class Request(msgspec.Struct, frozen=True):
    """Base of all requests; the names of the fields are part of the wire format."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all replies; `ok` is false for :class:`ErrorReply` alone."""

    version: int = VERSION
    ok: bool = True


class ErrorReply(Reply, frozen=True, kw_only=True):
    """Answer to a request that failed.

    Attributes
    ----------
    error
        Message for the user, one sentence.
    code, field, details
        Structured information, as in :class:`~jupyter_amltrain.errors.AmlTrainError`. Never parse `error`.
    """

    error: str
    code: str = ""
    field: str = ""
    details: dict[str, Any] = {}
    ok: bool = False

    @classmethod
    def of(cls, error: AmlTrainError) -> ErrorReply:
        """Return the reply for an error."""
        code = error.code or type(error).__name__
        return cls(error=str(error), code=code, field=error.field, details=error.details)


class RegisteredOp(NamedTuple):
    """One row of the registry."""

    request: type[Request]
    reply: type[Reply]


Handler = Callable[[Any], Coroutine[Any, Any, Reply]]
_Method = TypeVar("_Method", bound=Callable[..., Coroutine[Any, Any, Reply]])

#: Every operation by its name on the wire. Complete after the import of :mod:`.control` and :mod:`.handlers`.
OPERATIONS: dict[str, RegisteredOp] = {}


def op(name: str) -> Callable[[_Method], _Method]:
    """Make a method the handler of an operation.

    The annotations of the method are the request and the reply. Define both Structs above the class: they are
    resolved when the class is defined.

    Examples
    --------
    ::

        class CancelRun(Request, frozen=True, kw_only=True):
            handle: str

        class CancelReply(Reply, frozen=True, kw_only=True):
            accepted: bool

        class RunHandlers:
            @op("cancel")
            async def cancel(self, request: CancelRun) -> CancelReply: ...

    Then run ``python -m tools.protocol_types``, and call ``client.request('cancel', { handle })`` in the page.
    """

    def register(method: _Method) -> _Method:
        hints = get_type_hints(method)
        reply = hints.pop("return")
        (request,) = hints.values()
        if name in OPERATIONS:
            raise ValueError(f"Operation {name!r} has two handlers.")
        OPERATIONS[name] = RegisteredOp(request, reply)
        method.operation = name  # type: ignore[attr-defined]
        return method

    return register


def handlers_of(topic: object) -> Iterator[tuple[type[Request], Handler]]:
    """Return the requests that an object handles, with its bound methods."""
    for attribute in vars(type(topic)).values():
        name = getattr(attribute, "operation", None)
        if name is not None:
            yield OPERATIONS[name].request, attribute.__get__(topic)


def decode(content: dict[str, Any]) -> Request:
    """Return the request in the content of a message.

    Raises
    ------
    msgspec.ValidationError
        An unknown operation, or a field of a wrong type.
    """
    name = content.get("op")
    operation = OPERATIONS.get(name) if isinstance(name, str) else None
    if operation is None:
        raise msgspec.ValidationError(f"Unknown operation {name!r}")
    fields = {key: value for key, value in content.items() if key not in ("version", "op")}
    return msgspec.convert(fields, operation.request)


# ---- events: data of comm messages, numbered without a gap from 0 on each comm


class StateSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="snapshot"):
    """Complete state, newest run first.

    Attributes
    ----------
    runs
        The newest 500.
    more
        Number of past runs that are not in `runs`.
    trouble
        Why the targets cannot be read, one sentence; empty if they can.
    """

    seq: int
    current: str
    targets: tuple[TargetRow, ...]
    runs: tuple[RunRow, ...]
    more: int = 0
    workspaces: tuple[WorkspaceRow, ...] = ()
    trouble: str = ""
    version: int = VERSION


class Changes(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="changes"):
    """Differences since the last event; at most two a second.

    Attributes
    ----------
    targets
        All targets if any has changed, else ``None``.
    workspaces
        All connected workspaces if any has changed, else ``None``.
    current
        Name of the current target if it or `targets` has changed, else ``None``.
    trouble
        As in a snapshot, if it has changed, else ``None``.
    renew
        The client has to send its ``events`` request again, to confirm that it still listens.
    """

    seq: int
    runs: tuple[RunRow, ...] = ()
    gone: tuple[str, ...] = ()
    targets: tuple[TargetRow, ...] | None = None
    workspaces: tuple[WorkspaceRow, ...] | None = None
    current: str | None = None
    trouble: str | None = None
    renew: bool = False


class Gpus(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="gpus"):
    """Samples of the GPUs that the client subscribed to; at most two messages a second.

    The buffer, if there are new samples, is a message of `jupyter_amltrain.kernel.samples` with one part. Its values
    are the first host's CPU (percent of one core) and memory (bytes); its percentages are the utilization of
    each GPU, then the memory of each.

    Attributes
    ----------
    source
        The source as the request named it.
    first
        These samples, up to 600 past ones, replace those that the client has.
    labels
        Display name of each GPU: ``GPU 0 MIG 1``, or ``n1 GPU 3`` with several nodes; only with `first`.
    nodes
        Node of each GPU; only with `first`.
    names
        Product names of the GPUs, in the same order; only with `first`.
    memory
        Bytes of each GPU; only with `first`. `None` where unknown.
    lost
        Indices, into `labels`, of the GPUs that the driver has lost.
    cpus, host_memory
        Of the first node; only with `first`.
    period
        Seconds between samples.
    note
        Why there are no samples, or what happened to the driver; one sentence.
    ended
        No more samples will come.
    """

    seq: int
    source: str
    first: bool = False
    labels: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    memory: tuple[float | None, ...] = ()
    lost: tuple[int, ...] = ()
    cpus: int | None = None
    host_memory: float | None = None
    period: float = 1.0
    note: str = ""
    ended: bool = False


class Notice(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="notice"):
    """A message for the user: an operation on a target has ended, or failed.

    Attributes
    ----------
    level
        ``success``, ``warning`` or ``error``.
    """

    seq: int
    level: str
    text: str
    target: str = ""


class Meter(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="meter"):
    """Mean GPU utilization of the current target in percent, for the status bar; `None` if it is unknown."""

    seq: int
    target: str
    gpus: int
    util: float | None
    renew: bool = False


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="beat"):
    """The kernel is alive although a cell keeps it busy; sent every 2 s while a cell runs and a panel is shown."""

    seq: int
    renew: bool = False


Event = StateSnapshot | Changes | Gpus | Notice | Meter | Beat
