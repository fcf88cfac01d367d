"""Further parts of a record, which guests read from the run's folder, or make from its entry. Loop thread only.

A part is a field of :class:`~jupyter_amltrain.schema.record.RunRecord`, a row of :data:`PARTS`, and a row of `PARTS` in
``labextension/src/output/parts.ts``.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import msgspec

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.inside.lines_part import LinesPart
from jupyter_amltrain.kernel.shown_files import FileReading
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.plugins import parts
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.schema.run import Run

#: Seconds between two readings of one run's part: at first, on another machine, and at most.
INTERVAL_S, FAR_INTERVAL_S, MAX_INTERVAL_S = 3.0, 20.0, 60.0
#: Part of a run's age that the interval is, and of the interval that a reading may take.
_AGE_PART, _READING_PART = 1 / 20, 1 / 20


class RecordPart(Protocol):
    """A further part of records."""

    name: str  #: its field of the record

    def applies(self, run: Run) -> bool:
        """Whether the run may have it."""

    async def read(self, backend: Backend, run: Run, known: Any) -> Any:
        """Return what is known now, `known` itself if nothing has changed; ``None``: nothing."""

    def shown(self, known: Any) -> msgspec.Struct | None:
        """Return the value of the field, a few kB."""

    def text(self, shown: Any) -> list[str]:
        """Return lines for the plain text of the record."""

    def html(self, shown: Any) -> str:
        """Return HTML for readers of the saved notebook."""


class EntryPart(Protocol):
    """A further part of records that the kernel knows without reading more: the part ``record_parts`` of a plug-in."""

    name: str  #: its field of the record

    def of(self, entry: Entry) -> msgspec.Struct | None:
        """Return the value of the field, a few kB; ``None`` for a run without it."""

    def text(self, shown: Any) -> list[str]:
        """Return lines for the plain text of the record."""

    def html(self, shown: Any) -> str:
        """Return HTML for readers of the saved notebook."""


PARTS: tuple[RecordPart, ...] = (LinesPart(),)


class PartState:
    """What is known of a part of one run's record."""

    def __init__(self) -> None:
        self.reading = FileReading()
        self.known: Any = None
        self.next_at = 0.0  #: monotonic seconds
        self.final = False  #: it was read after the end of the run


class PartFiles:
    """The files of a part; a :class:`~jupyter_amltrain.kernel.shown_reader.ShownKind`."""

    interval_s = INTERVAL_S

    def __init__(self, part: RecordPart) -> None:
        self.name, self._part = part.name, part

    def of(self, entry: Entry) -> PartState:
        """Return what is known of a run's part."""
        state: PartState = entry.parts.setdefault(self.name, PartState())
        return state

    def is_known(self, entry: Entry, *, has_ended: bool) -> bool:
        """Whether it was read after the end, or a short time ago."""
        if not self._part.applies(entry.run):
            return True
        state = self.of(entry)
        return state.final or (not has_ended and time.monotonic() < state.next_at)

    async def read(self, entry: Entry, backend: Backend, *, has_ended: bool) -> bool:
        """Read now; return whether a record shows anything else."""
        state, begun = self.of(entry), time.monotonic()
        before = None if state.known is None else self._part.shown(state.known)
        try:
            state.known = await self._part.read(backend, entry.run, state.known)
        finally:
            took, age = time.monotonic() - begun, time.time() - entry.run.created
            least = INTERVAL_S if backend.files.are_local else FAR_INTERVAL_S
            state.next_at = begun + took + max(least, took / _READING_PART, min(MAX_INTERVAL_S, age * _AGE_PART))
        state.final = has_ended
        return before != (None if state.known is None else self._part.shown(state.known))


def part_values(entry: Entry) -> dict[str, Any]:
    """Return the parts of a run that are known, by their field of the record."""
    known = {part: entry.parts[part.name].known for part in PARTS if part.name in entry.parts}
    read = {part.name: part.shown(one) for part, one in known.items() if one is not None}
    return {**read, **{part.name: part.of(entry) for part in _entry_parts()}}


def _entry_parts() -> tuple[EntryPart, ...]:
    return parts("record_parts")


def parts_text(record: RunRecord) -> list[str]:
    """Return lines about the parts of a record."""
    return [line for part, shown in _shown(record) for line in part.text(shown)]


def parts_html(record: RunRecord) -> str:
    """Return the parts of a record as HTML."""
    return "".join(part.html(shown) for part, shown in _shown(record))


def _shown(record: RunRecord) -> list[tuple[RecordPart | EntryPart, Any]]:
    every: tuple[RecordPart | EntryPart, ...] = (*PARTS, *_entry_parts())
    return [(part, shown) for part in every if (shown := getattr(record, part.name)) is not None]
