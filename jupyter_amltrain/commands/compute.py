"""``compute``: the places where runs can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyter_amltrain.commands.tables import pairs, table
from jupyter_amltrain.errors import TargetError
from jupyter_amltrain.naming import tilde
from jupyter_amltrain.runs.text import bytes_text

if TYPE_CHECKING:
    from jupyter_amltrain.spec.target import TargetInfo


def listing() -> list[dict[str, Any]]:
    """Every target as a JSON-able row; only this machine is asked, which is quick."""
    import msgspec

    from jupyter_amltrain import api

    current = api.current_target()
    rows = []
    for target in api.targets():
        fields = msgspec.to_builtins(target)
        row: dict[str, Any] = {"target": target.name, "kind": fields.get("kind", ""), "current": target.name == current}
        if row["kind"] == "local":
            try:
                row["info"] = msgspec.to_builtins(api.compute(target.name))
            except TargetError as error:
                row["error"] = str(error)
        rows.append(row)
    return rows


def listing_text(rows: list[dict[str, Any]]) -> str:
    """The table of ``compute list``."""
    lines = []
    for row in rows:
        info = row.get("info") or {}
        slots = ", ".join(
            f"{s['free']} of {s['total']} {kind}" for kind, s in info.get("slots", {}).items() if s["total"]
        )
        lines.append(
            [
                "*" if row["current"] else "",
                row["target"],
                row["kind"],
                "" if info.get("cpus") is None else str(info["cpus"]),
                "" if info.get("memory") is None else bytes_text(info["memory"]),
                _gpus(info.get("gpus", ())) or ("none" if info else ""),
                slots,
                row.get("error", "") or _work(info),
            ]
        )
    return table(["", "target", "kind", "CPUs", "memory", "GPUs", "free slots", "now"], lines)


def _work(info: dict[str, Any]) -> str:
    if not info:
        return "%aml_compute test asks"
    return f"{info.get('running', 0)} running, {info.get('queued', 0)} queued"


def _gpus(gpus: Any) -> str:
    names: dict[str, int] = {}
    for gpu in gpus:
        names[str(gpu.get("name") or "GPU")] = names.get(str(gpu.get("name") or "GPU"), 0) + 1
    return ", ".join(f"{n} x {name}" for name, n in names.items())


def show(name: str | None = None) -> TargetInfo:
    """Ask one target; default the one in use."""
    from jupyter_amltrain import api

    return api.compute(name)


def show_text(info: TargetInfo) -> str:
    """All that a check found."""
    facts = [
        ("target", f"{info.target} ({info.kind})"),
        ("state", "reachable" if info.reachable else "not reachable"),
        ("detail", info.detail),
        ("CPUs", "" if info.cpus is None else str(info.cpus)),
        ("memory", "" if info.memory is None else bytes_text(info.memory)),
        ("GPUs", _gpus(info.gpus) or info.gpu_note or "none"),
    ]
    facts += [
        (f"  {gpu.get('index', '')}", f"{gpu.get('name')}  {bytes_text(gpu.get('memory_total'))}  {gpu.get('uuid')}")
        for gpu in info.gpus
    ]
    facts += [(f"{kind} slots", f"{s['free']} free of {s['total']}") for kind, s in info.slots.items()]
    facts += [
        ("runs", f"{info.running} running, {info.queued} queued"),
        ("Python", info.python),
        ("platform", info.platform),
        ("state folder", tilde(info.home)),
    ]
    lines = pairs(facts)
    if info.survives:
        rows = [(place, f"{s.get('answer', 'unknown')}: {s.get('why', '')}") for place, s in info.survives.items()]
        lines += f"\n\nA run survives the end of\n{pairs(rows)}"
    return lines


def test_text(info: TargetInfo) -> str:
    """One line: can it run jobs now?"""
    gpus = _gpus(info.gpus) or "no GPU"
    cpus = "" if info.cpus is None else f", {info.cpus} CPUs"
    memory = "" if info.memory is None else f", {bytes_text(info.memory)}"
    if not info.reachable:
        return f"{info.target}: not reachable. {info.detail}".rstrip()
    return f"{info.target}: ready{cpus}{memory}, {gpus}; {info.running} running, {info.queued} queued."


def use(name: str) -> str:
    """Make a target the default."""
    from jupyter_amltrain import api

    api.use(name)
    return f"{name} is the target in use now, in every notebook."
