"""Plain text of a record, for terminals, ``nbconvert`` and front ends without the labextension."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from jupyter_amltrain.agent.telemetry.gpu_columns import FIGURES, MEAN, summary_names
from jupyter_amltrain.agent.telemetry.gpu_names import gpu_counts
from jupyter_amltrain.kernel.gpu_tables import error_texts
from jupyter_amltrain.kernel.throughput import rate_name
from jupyter_amltrain.output.sweep_table import sweep_lines
from jupyter_amltrain.schema.child_run import most_relevant
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.schema.run import DAMAGED
from jupyter_amltrain.text import bytes_text, seconds_text, silence


def allocator_texts(gpus: Iterable[Mapping[str, Any]], size: Callable[[float | None], str]) -> list[str]:
    """Return ``PyTorch peak 30.1 GiB allocated, 35.0 GiB reserved``, for the GPU with the highest peak.

    Parameters
    ----------
    gpus
        GPUs of a summary or of a record's ``now``; values in MiB.
    size
        Formats bytes as text.
    """
    peaks = [
        (float(gpu["torch_reserved_peak"]), float(gpu.get("torch_allocated_peak") or 0))
        for gpu in gpus
        if isinstance(gpu.get("torch_reserved_peak"), int | float) and gpu["torch_reserved_peak"] > 0
    ]
    if not peaks:
        return []
    reserved, allocated = max(peaks)
    return [f"PyTorch peak {size(allocated * 2**20)} allocated", f"{size(reserved * 2**20)} reserved"]


def throughput_text(values: Mapping[str, float | str | None]) -> str:
    """Return ``412 samples/s``; empty if no such metric is logged.

    Parameters
    ----------
    values
        Last value of each metric, by name.
    """
    best: tuple[int, str] | None = None
    for name, value in values.items():
        rate = rate_name(name)
        if rate is None or not isinstance(value, (int, float)) or not value > 0:
            continue
        words = f"{rate_text(value)} {rate.counted}/s" if rate.counted else f"throughput {rate_text(value)}"
        if best is None or rate.rank < best[0]:
            best = (rate.rank, words)
    return best[1] if best else ""


def rate_text(value: float) -> str:
    """Return three significant digits: ``3.21``, ``12,345``."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


#: Maximum log lines in the text of an output.
LOG_LINES = 8

#: Maximum steps or trials in the text of an output.
CHILD_ROWS = 12

#: Maximum characters of a name or detail in the table of steps or trials.
_MAX_CELL_CHARS = 60


def state_line(record: RunRecord) -> str:
    """Return a line such as ``local/digits-k3f9  completed  (queued 0.1 s, running 12 s)``."""
    times: dict[str, float] = {}  # of all attempts
    for phase in record.phases:
        if phase.seconds is not None:
            times[phase.name] = times.get(phase.name, 0.0) + phase.seconds
    spans = ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in times.items())
    words = [record.handle, DAMAGED if record.reason == DAMAGED else record.state]
    if record.attempt > 1:
        words.append(f"attempt {record.attempt}")
    if record.cancel_requested and not record.done:
        words.append("cancel requested")
    if not record.reachable:
        words.append(silence(record.seen_at))
    return "  ".join(words) + (f"  ({spans})" if spans else "")


def record_text(record: RunRecord, log_lines: int = LOG_LINES, child_rows: int = CHILD_ROWS) -> str:
    """Return the record in a few lines, with at most `child_rows` steps or trials."""
    lines = [state_line(record), *([_one_line(record.taken.line)] if record.taken.line else [])]
    lines += [f"note: {_one_line(note)}" for note in record.notes]
    lines += [f"{link.title}: {_one_line(link.url or link.hint)}" for link in record.links]
    if record.error:
        lines.append(record.error)
    elif record.detail and not record.done:
        lines.append(record.detail)
    if record.truth is not None and record.truth.verdict == "not used":
        cause = f"; likely cause: {record.truth.cause}" if record.truth.cause else ""
        lines.append(_one_line(f"GPU IDLE: {record.truth.detail}{cause}"))
    if record.sweep is not None:
        return "\n".join([*lines, *sweep_lines(record.sweep)])
    if record.metrics:
        lines.append("  ".join(f"{name} {_number(m.last)}" for name, m in record.metrics.items()))
    lines += [f"{name} = {value if isinstance(value, str) else repr(value)}" for name, value in record.outputs.items()]
    lines += pictures_lines(record)
    lines += children_lines(record, child_rows)
    telemetry = record.telemetry
    if telemetry.memory:
        peaks = [value for value in telemetry.memory if value is not None]
        busy = [value for value in telemetry.cpu if value is not None]
        if peaks and busy:
            mean = sum(busy) / len(busy)
            lines.append(f"host: cpu mean {mean:.0f} %, memory peak {bytes_text(max(peaks))}")
    rate = throughput_text({name: metric.last for name, metric in record.metrics.items()})
    gpus = gpu_line(msgspec.to_builtins(record.gpu) or {}, record.summary, rate)
    hint = _one_line(str(record.summary.get("hint") or ""))
    lines += [line for line in (gpus, hint and f"hint: {hint}") if line]
    tail = record.log.tail.splitlines()[-log_lines:]
    if tail:
        lines.append(f"log ({bytes_text(record.log.bytes)}, {record.log.path}), last lines:")
        lines += [f"  {line}" for line in tail]
    return "\n".join(lines)


def pictures_lines(record: RunRecord) -> list[str]:
    """Return ``figures: figure-1.png, confusion.png and 3 more``."""
    if not record.pictures:
        return []
    more = f" and {record.pictures_hidden} earlier" if record.pictures_hidden else ""
    return [f"figures: {', '.join(_one_line(picture.name) for picture in record.pictures)}{more}"]


def children_lines(record: RunRecord, limit: int = CHILD_ROWS) -> list[str]:
    """Return steps or trials as a table: name, state, metric, time, id."""
    shown = most_relevant(record.children, limit)
    if not shown:
        return []
    rows = [[shown[0].kind, "state", "metric", "ran", "id"]]
    for run in shown:
        metric = f"{run.metric} {_number(run.value)}" if run.metric else ""
        ran = "" if run.seconds is None else seconds_text(run.seconds)
        state = f"{run.state}: {_short(run.detail)}" if run.detail else run.state
        rows.append([_short(run.name), state, metric + (" (best)" if run.best else ""), ran, run.id])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    hidden = record.children_hidden + len(record.children) - len(shown)
    lines += [f"and {hidden} more"] if hidden else []
    return [*lines, f"To see a log: %aml_runs logs {record.handle} --step {shlex.quote(shown[0].name)}"]


def _short(text: str) -> str:
    text = _one_line(text)
    return text if len(text) <= _MAX_CELL_CHARS else f"{text[: _MAX_CELL_CHARS - 1]}…"


def gpu_line(gpu: Mapping[str, Any], summary: Mapping[str, Any], rate: str = "") -> str:
    """:func:`gpu_texts` in one line; empty without GPUs."""
    words = gpu_texts(gpu, summary, rate)
    several = max(len(gpu.get("gpus") or ()), len(summary.get("gpus") or ())) > 1
    return f"GPU{'s' if several else ''}: " + ", ".join(words) if words else ""


def gpu_texts(gpu: Mapping[str, Any], summary: Mapping[str, Any], rate: str = "") -> list[str]:
    """Return a run's GPU use: from the summary if the run has ended, otherwise from the samples so far.

    Parameters
    ----------
    gpu, summary
        These fields of a record, as JSON. For several GPUs, minimum and maximum are shown.
    rate
        Training throughput as text.

    Returns
    -------
    list
        GPU names, then figures; empty without GPUs. Values that no device reports are ``n/a``.
    """
    drawn, summed = gpu.get("gpus") or (), summary.get("gpus") or ()
    count = max(len(drawn), len(summed))
    if not count:
        return []
    words = [gpu_counts(drawn if len(drawn) >= len(summed) else summed)]
    if count == 1:
        words = [words[0].removeprefix("1 x ")]
    totals = _known(g.get("memory_total") for g in drawn) or [2**20 * v for v in _values(summed, "memory_total")]
    if summed:
        peaks = [2**20 * v for v in _values(summed, "memory_peak")]
        means = _values(summed, "util_mean")
    else:
        series = [g.get("memory") or () for g in drawn] + [(gpu.get("memory") or {}).get("high") or ()]
        peaks = [max(known) for values in series if (known := _known(values))]
        series = [g.get("util") or () for g in drawn] + [(gpu.get("util") or {}).get("mean") or ()]
        means = [sum(known) / len(known) for values in series if (known := _known(values))]
    of = f" of {bytes_text(max(totals))}" if totals else ""
    words += error_texts(summed)
    words.append("memory peak " + (_span(bytes_text(min(peaks)), bytes_text(max(peaks))) + of if peaks else "n/a"))
    words += allocator_texts(summed or gpu.get("now") or (), bytes_text)
    words.append("utilization mean " + _percent(means))
    words += [rate] if rate else []
    if summed:
        words.append(f"p95 {_percent(_values(summed, 'util_p95'))}")
        words += [f"{title} mean {_percent(means)}" for key, title in _SHARES if any(means := _values(summed, key))]
        copied = [100 * v for v in _values(summed, "copy_share")]
        words += [f"only copying for {_percent(copied)} of the time"] if max(copied, default=0.0) >= 1 else []
        words.append(f"under 10 % for {_percent([100 * v for v in _values(summed, 'idle_share')])} of the time")
        energy = _values(summed, "energy_wh")
        sources = {str(gpu.get("energy_source") or "") for gpu in summed}
        words.append(_energy(sum(energy)) + _source(sources) if len(energy) == count else "energy n/a")
        first = _values(summed, "first_use")
        words += [f"first used after {seconds_text(min(first))}"] if first else []
        for key, title in _THROTTLED:
            seconds = max(_values(summed, key), default=0.0)
            words += [f"throttled by {title} for {seconds_text(seconds)}"] if seconds >= 0.5 else []
    if gpu.get("note"):
        words.append(_one_line(str(gpu["note"])))
    return words


#: Keys of a summary and their titles: mean shares of the table's figures, in its order.
_SHARES = tuple(
    # An abbreviation keeps its capitals within a sentence.
    (key, column.label if column.label[:2].isupper() else column.label[0].lower() + column.label[1:])
    for column in FIGURES
    if column.unit == "percent" and column.reducer == MEAN
    for key, _ in summary_names(column)
)

#: Keys of a summary and their titles: seconds of throttling.
_THROTTLED = (("throttled_power_s", "the power limit"), ("throttled_heat_s", "heat"))


def _energy(hours: float) -> str:
    return f"{hours:.3g} Wh" if hours < 999.5 else f"{hours / 1000:.3g} kWh"


def _source(sources: set[str]) -> str:
    """Return the source of an energy value; records of earlier versions have none."""
    if sources == {"counter"}:
        return " by the driver's counter"
    return " estimated from power samples" if sources == {"power"} else ""


def _values(gpus: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return _known(gpu.get(name) for gpu in gpus)


def _known(values: Iterable[Any]) -> list[float]:
    return [value for value in values if value is not None]


def _percent(values: list[float]) -> str:
    return f"{_span(f'{min(values):.0f}', f'{max(values):.0f}')} %" if values else "n/a"


def _span(low: str, high: str) -> str:
    return high if low == high else f"{low} to {high}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _number(value: float | str | None) -> str:
    return "n/a" if value is None else value if isinstance(value, str) else f"{value:.4g}"
