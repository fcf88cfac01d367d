"""Streams of runs: their names, parts of them, and events of their changes."""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping, Sequence

import msgspec

from jupyter_amltrain.agent.protocol import valid_run_id
from jupyter_amltrain.errors import CommandError

#: Streams that a backend can tail. A log belongs to one process of a run: ``log/1`` is the log of rank 1, ``log`` that
#: of rank 0. The last three belong to one node: ``telemetry/1`` is of node 1, ``telemetry`` of node 0. They contain
#: all ticks (JSON lines), aggregates per minute (JSON lines), and one JSON object that is replaced as a whole.
STREAMS = ("log", "metrics", "telemetry", "minutes", "summary")
PER_NODE = ("telemetry", "minutes", "summary")
PER_RANK = ("log",)
#: Event of a run's status, as opposed to one of its streams.
STATUS = "status"
#: Ids of runs, and the streams that may have changed.
StreamChanges = Mapping[str, Collection[str]]
#: Prefix of a monitor's id in place of a run id in :meth:`Backend.read`.
MONITORS = "monitors/"


def stream_of(stream: str) -> tuple[str, int]:
    """Split ``telemetry/1`` into ``("telemetry", 1)``; a bare name means node 0 or rank 0.

    Raises
    ------
    CommandError
        The stream does not exist.
    """
    name, slash, number = stream.partition("/")
    if name not in STREAMS or (
        slash and not (name in (*PER_NODE, *PER_RANK) and number.isascii() and number.isdigit() and len(number) < 7)
    ):
        raise CommandError(f"There is no stream {stream[:80]!r}.", hint=f"Available: {', '.join(STREAMS)}.")
    return name, int(number or 0)


def monitor_of(run_id: str) -> str | None:
    """Return the monitor's id in ``monitors/<id>``; ``None`` for a run's id.

    Raises
    ------
    CommandError
        The id is invalid.
    """
    if not run_id.startswith(MONITORS):
        return None
    monitor_id = run_id[len(MONITORS) :]
    if not valid_run_id(monitor_id):
        raise CommandError(f"{monitor_id[:80]!r} is not a monitor id.", hint="Try: %aml_monitor local")
    return monitor_id


class Chunk(msgspec.Struct, frozen=True):
    """Bytes of a stream and the offset after them."""

    data: bytes
    offset: int


class RunEvents(abc.ABC):
    """Events of runs for one consumer; events between two calls are not lost."""

    @abc.abstractmethod
    async def wait(self, run_ids: Sequence[str], viewed: Sequence[str], timeout: float) -> StreamChanges:
        """Wait until some runs may have changed, or `timeout` seconds.

        Returns the ids of changed runs with the changes: :data:`STATUS` for `run_ids`, and for `viewed` (runs with
        viewers) also names of streams. A backend without change detection returns all of them.
        """

    @staticmethod
    def anything(run_ids: Collection[str]) -> StreamChanges:
        """Return events for the status and all streams of all runs."""
        return dict.fromkeys(run_ids, (STATUS, *STREAMS))

    @abc.abstractmethod
    def close(self) -> None:
        """Stop listening."""
