"""Position in the journal of a run, where the next import of a living run goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class JournalPosition:
    """What an import has learned from the journal up to `offset`; a new one is the beginning.

    It is valid only while the store's own cursor is at least `seq`: the store may have been replaced.
    """

    offset: int = 0  #: bytes of whole lines that are in the store
    seq: int = 0  #: number of the last record there
    main: str = "0"  #: the sink's experiment id of the job's own run
    run_id: str = ""
    experiments: dict[str, int] = field(default_factory=dict)  #: the sink's experiment id -> the store's
    traces: list[dict[str, Any]] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)  #: records that the store refused, with reasons
