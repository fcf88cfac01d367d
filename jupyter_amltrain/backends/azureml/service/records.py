"""Lines of the agent in the job -> the mirror's telemetry and journal, numbered on over everything that happens.

A job that the service starts again begins its files anew, and what MLflow told in the meantime may come a second
time in a file; readers and importer go by numbers without gap or repeat.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from jupyter_amltrain.backends.azureml.service.mirror_files import MirrorFiles

JOURNAL = "metrics/rank-0.jsonl"


def ticks(node: int) -> str:
    """The local file of a node's telemetry."""
    return f"telemetry/node-{node}.jsonl"


def take_ticks(mirror: MirrorFiles, node: int, data: bytes, restarted: bool) -> None:
    """Append whole lines of a node's file."""
    name, facts = ticks(node), mirror.facts.setdefault(f"ticks-{node}", {})
    if restarted:
        facts["base"] = int(facts.get("next") or 0)
    base, last = int(facts.get("base") or 0), float(facts.get("last") or 0)
    out: list[bytes] = []
    for line in data.splitlines(keepends=True):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and "columns" in value:
            if facts.get("header") and facts.get("columns") == value["columns"] and facts.get("by") == "file":
                continue
            facts.update(header=True, columns=value["columns"], by="file")
            out.append(line)
        elif isinstance(value, dict):
            if base and "seq" in value:
                line = _line({**value, "seq": base + int(value["seq"])})
            out.append(line)
        elif isinstance(value, list) and len(value) > 2:
            seq, t = base + int(value[0]), float(value[1])
            if t <= last:
                base -= 1  # MLflow told it already
                continue
            facts["next"], facts["last"] = seq + 1, t
            out.append(line if seq == value[0] else _line([seq, *value[1:]]))
            last = t
    facts["base"] = base
    mirror.append(name, b"".join(out), "telemetry")


def add_ticks(mirror: MirrorFiles, node: int, header: dict[str, Any], rows: list[list[Any]]) -> None:
    """Append ticks that are no lines of a file: ``[t, values...]``, later than all before."""
    facts = mirror.facts.setdefault(f"ticks-{node}", {})
    last, seq = float(facts.get("last") or 0), int(facts.get("next") or 0)
    rows = [row for row in rows if row[0] > last]
    if not rows:
        return
    out: list[bytes] = []
    if facts.get("columns") != header["columns"] or facts.get("gpus") != len(header.get("gpus") or ()):
        facts.update(header=True, columns=header["columns"], gpus=len(header.get("gpus") or ()), by="service")
        out.append(_line(header))
    for row in rows:
        out.append(_line([seq, *row]))
        seq, last = seq + 1, row[0]
    facts.update(next=seq, last=last)
    if facts.get("by") == "service":
        facts["base"] = seq
    mirror.append(ticks(node), b"".join(out), "telemetry")


def take_journal(mirror: MirrorFiles, data: bytes, restarted: bool) -> None:
    """Append whole lines of the agent's journal, but for points that MLflow told already."""
    facts = mirror.facts.setdefault("journal", {})
    told: dict[str, int] = facts.setdefault("told", {})
    if restarted:
        facts["told"] = told = {}
    out = []
    for line in data.splitlines(keepends=True):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record.get("op") == "init":
            if facts.get("init"):
                continue
            facts["init"] = True
        if told:
            record = _untold(record, told)
            if record is None:
                continue
        out.append(_numbered(facts, record, line))
    mirror.append(JOURNAL, b"".join(out), "metrics")


def add_records(mirror: MirrorFiles, records: Iterator[dict[str, Any]] | list[dict[str, Any]], init: Any) -> None:
    """Append what MLflow told: ``{"t", "op", "b"}``.

    Parameters
    ----------
    init
        ``a`` of the journal's first record: ``{"id", "exp_id", "exp_name", "name"}``.
    """
    facts = mirror.facts.setdefault("journal", {})
    told: dict[str, int] = facts.setdefault("told", {})
    out = []
    for record in records:
        if not facts.get("init"):
            facts["init"] = True
            out.append(_numbered(facts, {"t": record["t"], "op": "init", "b": {}, "a": init}))
        for point in record["b"].get("metrics") or ():
            told[point["key"]] = told.get(point["key"], 0) + 1
        out.append(_numbered(facts, record))
    mirror.append(JOURNAL, b"".join(out), "metrics")


def _numbered(facts: dict[str, Any], record: dict[str, Any], line: bytes = b"") -> bytes:
    seq = facts["seq"] = int(facts.get("seq") or 0) + 1
    if line and record.get("seq") == seq and line.endswith(b"\n") and json.loads(line) == record:
        return line
    return _line({**record, "seq": seq})


def _untold(record: dict[str, Any], told: dict[str, int]) -> dict[str, Any] | None:
    """A record without the points that were told, of which there are `told` by name."""
    body = record.get("b") or {}

    def new(point: dict[str, Any]) -> bool:
        left = told.get(str(point.get("key")), 0)
        if left:
            told[str(point["key"])] = left - 1
        return not left

    if record.get("op") == "runs/log-metric":
        return record if new(body) else None
    if record.get("op") == "runs/log-batch" and body.get("metrics"):
        return {**record, "b": {**body, "metrics": [point for point in body["metrics"] if new(point)]}}
    return record


def whole_lines(data: bytes) -> bytes:
    """`data` up to its last newline."""
    return data[: data.rfind(b"\n") + 1]


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
