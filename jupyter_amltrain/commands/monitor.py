"""``monitor``: current use of a target's GPUs and host, as charts or as a table."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.agent.telemetry.gpu_names import gpu_name
from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.jobs import flag_types
from jupyter_amltrain.text import UNKNOWN, bytes_text, measure, table

if TYPE_CHECKING:
    import argparse


def _flags(parser: Parser) -> None:
    parser.flag("target", nargs="?", help="name of the target; default the one in use")
    parser.flag("--gpus", metavar="N,N", type=flag_types.indices, help="only these GPUs; default all")
    if parser.magic:
        parser.flag(
            "--window", metavar="TIME|all", type=flag_types.window, default=600.0,
            help="time range of the charts; default 10m", samples=("10m", "1h", "all"),
        )  # fmt: skip
    parser.flag(
        "--rate", metavar="HZ", type=flag_types.rate, default=1.0, samples=("0.5", "1", "2"),
        help="samples per second, 0.1 to 10; default 1",
    )  # fmt: skip
    if parser.magic:
        parser.flag("--stop", action="store_true", help="stop the monitors of this notebook, of all targets or of one")
    else:
        parser.flag("--once", action="store_true", help="print one table and exit")
        parser.flag("--json", action="store_true", help="print JSON, one line per sample")


def _run(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    if context.magic and (args.stop or _is_stop(args.target)):
        stopped = api.stop_monitors("" if _is_stop(args.target) else args.target or "")
        return Result(f"Stopped: {', '.join(stopped)}" if stopped else "No monitor of this notebook is running.")
    if (overview := api.target_overview(args.target)) is not None:
        text, rows = overview
        if not context.magic and args.json:
            text = "\n".join(map(json.dumps, rows))
        return Result(text + "\n", verbatim=True)
    window = {"window": args.window} if context.magic else {}
    view = api.monitor(target=args.target, gpus=args.gpus, rate=args.rate, **window)
    if context.charts:
        return Result(value=view)
    try:
        if context.magic:
            return Result(snapshot_text(view.snapshot()))
        rewrite = context.interactive and not args.json
        period = max(1.0, 1 / args.rate)
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends the command
            repeat(view, context.write, period=period, as_json=args.json, rewrite=rewrite, once=args.once)
    finally:
        view.stop()
    return Result()


def _is_stop(name: str | None) -> bool:
    """Whether ``%aml_monitor stop`` is meant, and not a target of that name."""
    from jupyter_amltrain import api

    return name == "stop" and name not in {target.name for target in api.targets()}


COMMANDS = (
    Command(
        summary="Watch the GPUs and host of a target, or show the nodes and jobs of a cluster.",
        run=_run,
        flags=_flags,
        examples=Examples(
            ("%aml_monitor", "%aml_monitor local --gpus 0,1 --window 30m --rate 2"),
            ("amltrain monitor", "amltrain monitor local --gpus 0,1", "amltrain monitor --once --json"),
        ),
    ),
)


def snapshot_text(snapshot: Mapping[str, Any]) -> str:
    """Return one sample as a table of GPUs and a line about the host.

    Parameters
    ----------
    snapshot
        ``gpus``: rows of index, label, name, util (percent), memory and memory_total (MiB), power (W),
        temperature (°C) and, where the device reports them, power_limit, sm_activity, lost; ``processes``: rows of gpu,
        label, pid, user, command, memory (MiB), sm (percent); ``host``: cpu (percent of all cores), memory (bytes);
        ``note``: a sentence or "".
    """
    parts = []
    gpus = snapshot.get("gpus", ())
    activity = any(gpu.get("sm_activity") is not None for gpu in gpus)
    rows = [_row(gpu, activity) for gpu in gpus]
    if rows:
        extra = ["SM activity"] if activity else []
        parts.append(table(["", "name", "util", *extra, "memory", "power", "temperature"], rows))
    processes = [_process_row(process) for process in snapshot.get("processes", ())]
    if processes:
        parts.append(table(["", "pid", "user", "command", "SM", "GPU memory"], processes))
    host = snapshot.get("host") or {}
    if host:
        cpu, memory = measure(host.get("cpu"), "%"), host.get("memory")
        parts.append(f"host: cpu {cpu} of all cores, memory {UNKNOWN if memory is None else bytes_text(memory)}")
    if snapshot.get("note"):
        parts.append(str(snapshot["note"]))
    return "\n".join(parts) or "No sample yet."


def _process_row(process: Mapping[str, Any]) -> Sequence[str]:
    return [
        gpu_name({"index": process.get("gpu"), "label": process.get("label")}),
        str(process.get("pid", "")),
        str(process.get("user") or UNKNOWN),
        str(process.get("command") or UNKNOWN),
        measure(process.get("sm"), "%"),
        measure(process.get("memory"), "MiB"),
    ]


def _row(gpu: Mapping[str, Any], activity: bool) -> Sequence[str]:
    memory = measure(gpu.get("memory"), "MiB")
    total, limit = gpu.get("memory_total"), gpu.get("power_limit")
    power = measure(gpu.get("power"), "W")
    return [
        gpu_name(gpu),
        str(gpu.get("name") or ""),
        "lost" if gpu.get("lost") else measure(gpu.get("util"), "%"),
        *([measure(gpu.get("sm_activity"), "%")] if activity else []),
        memory if total is None else f"{memory} of {total:,.0f} MiB",
        power if limit is None else f"{power} of {limit:,.0f} W",
        measure(gpu.get("temperature"), "°C"),
    ]


def repeat(
    view: Any,
    write: Callable[[str], Any],
    *,
    period: float,
    as_json: bool = False,
    rewrite: bool = False,
    once: bool = False,
) -> None:
    """Write samples until an interrupt.

    Parameters
    ----------
    view
        The view that ``api.monitor`` returned.
    period
        Seconds between two samples.
    rewrite
        Overwrite the previous sample, with the escape sequences of a terminal.
    once
        Write one sample only.
    """
    lines, due = 0, time.monotonic()
    while True:
        snapshot = view.snapshot()
        text = json.dumps(snapshot) if as_json else snapshot_text(snapshot)
        # Move up to the first line of the last table, and clear everything below.
        write((f"\x1b[{lines}A\x1b[J" if rewrite and lines else "") + text + "\n")
        lines = text.count("\n") + 1
        if once:
            return
        due = max(due + period, time.monotonic())
        time.sleep(max(due - time.monotonic(), 0.0))
