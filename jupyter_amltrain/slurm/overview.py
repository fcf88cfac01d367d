"""What a cluster has and does: its nodes, free GPUs by type, the jobs of this user, and what their accounts allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_amltrain.backends.capabilities import TargetOverview, TargetQuota
from jupyter_amltrain.backends.transport import Transport
from jupyter_amltrain.text import bytes_text, table

Row = Mapping[str, Any]


class ClusterOverview(TargetOverview):
    """What a cluster has and does now, as its login node tells."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def read(self) -> tuple[str, list[dict[str, Any]]]:
        """See :meth:`TargetOverview.read`."""
        answer = await self._transport.call("overview", {})
        parts = [
            _nodes_table(answer["nodes"]),
            _gpus_table(answer["nodes"], answer["used"]),
            _jobs_table(answer["jobs"]),
        ]
        found = [{"table": name, **row} for name in ("nodes", "jobs") for row in answer[name]]
        return "\n\n".join(part for part in parts if part), found


class ClusterQuota(TargetQuota):
    """Shares and limits of the accounts of this user, where the accounting of the cluster answers."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def read(self, *, everything: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """See :meth:`TargetQuota.read`."""
        answer = await self._transport.call("quota", {})
        tables = {
            "shares": ["account", "shares", "used (CPU seconds)", "part of use", "fair share"],
            "accounts": ["account", "partition", "qualities of service", "limits"],
            "qos": ["quality of service", "priority", "limits"],
        }
        shown = {
            name: [row for row in answer[name] if everything or name == "shares" or row["limits"]] for name in tables
        }
        parts = [
            table(head, [list(row.values()) for row in shown[name]]) for name, head in tables.items() if shown[name]
        ]
        rows = [{"table": name, **row} for name, found in shown.items() for row in found]
        hidden = sum(len(answer[name]) for name in tables) - len(rows)
        if hidden:
            parts.append(f"{hidden} without a limit {'is' if hidden == 1 else 'are'} hidden (show with --all).")
        return "\n\n".join(parts), rows


def _nodes_table(rows: Sequence[Row]) -> str:
    return table(
        ["partition", "nodes", "state", "processors", "memory", "GPUs", "features"],
        [
            [
                row["partition"], str(row["nodes"]), row["state"], str(row["cpus"]), bytes_text(row["memory"]),
                gpus_text(row["gpus"]), ",".join(row["features"]),
            ]
            for row in rows
        ],
    )  # fmt: skip


def gpus_text(gpus: Mapping[str, int]) -> str:
    """Return the GPUs of a node, ``4 a100``."""
    return ", ".join(f"{count} {kind}".strip() for kind, count in gpus.items())


def _gpus_table(rows: Sequence[Row], used: Mapping[str, Mapping[str, int]]) -> str:
    """Return the GPUs of each partition by type; those of nodes that are down are not free."""
    totals: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        for kind, count in row["gpus"].items():
            number = totals.setdefault((row["partition"], kind), [0, 0])
            number[0] += count * row["nodes"]
            number[1] += count * row["nodes"] if _is_up(row["state"]) else 0
    lines = []
    for (partition, kind), (total, usable) in totals.items():
        free = max(0, usable - int(used.get(partition, {}).get(kind, 0)))
        lines.append([partition, kind or "any", str(free), str(total)])
    return table(["partition", "GPU", "free", "of"], lines) if lines else ""


def _is_up(state: str) -> bool:
    """Whether nodes in a state of Slurm take jobs."""
    return not state.startswith(("down", "drain", "fail", "maint", "unk", "no_respond", "reserved"))


def _jobs_table(jobs: Sequence[Row]) -> str:
    if not jobs:
        return "You have no jobs."
    return table(
        ["job", "name", "state", "nodes", "why it waits"],
        [
            [
                job["id"], job["run"] or job["name"], job["state"].lower(), job["hosts"] or str(job["nodes"]),
                job["words"] if job["state"] == "PENDING" else "",
            ]
            for job in jobs
        ],
        whole_end=True,
    )  # fmt: skip
