"""The record: what one cell output says of a run, with or without a kernel.

It is the content of the MIME type ``application/vnd.amltrain.run+json`` and the
answer to the panel's ``run`` request; it stays under 200 kB for any run.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jupyter_amltrain.spec.run import Phase

RECORD_MIME = "application/vnd.amltrain.run+json"
RECORD_SCHEMA = 1


class MetricSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One metric, downsampled to at most 300 points by min and max."""

    step: tuple[int, ...]
    value: tuple[float | None, ...]
    last: float | None
    n: int  #: points before downsampling


class TelemetrySeries(msgspec.Struct, frozen=True, kw_only=True):
    """Host use of the run's processes.

    Attributes
    ----------
    t
        Unix seconds.
    cpu
        Percent of one core.
    memory
        Bytes, resident.
    age
        Seconds since the last sample; ``None`` when the run has ended.
    """

    t: tuple[float, ...] = ()
    cpu: tuple[float | None, ...] = ()
    memory: tuple[float | None, ...] = ()
    memory_total: float | None = None
    cpus: int | None = None
    age: float | None = None


class LogTail(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a log, ``\\r`` bars collapsed, at most 8 kB."""

    tail: str = ""
    bytes: int = 0
    lines_hidden: int = 0
    path: str = ""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """See the module's docstring; fields are documented by their types."""

    schema: int = RECORD_SCHEMA
    handle: str
    run_id: str
    name: str
    target: str
    experiment: str
    state: str
    detail: str = ""
    reason: str | None = None
    exit_code: int | None = None
    done: bool = False
    cancel_requested: bool = False
    reachable: bool = True
    created: float = 0.0
    seen_at: float = 0.0
    phases: tuple[Phase, ...] = ()
    params: dict[str, Any] = {}
    tags: dict[str, str] = {}
    metrics: dict[str, MetricSeries] = {}
    telemetry: TelemetrySeries = TelemetrySeries()
    log: LogTail = LogTail()
    outputs: dict[str, Any] = {}
    error: str | None = None
    tracking: dict[str, str] = {}
    source_sha256: str = ""
