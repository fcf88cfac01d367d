"""Plain text of a record, for terminals, ``nbconvert`` and front ends without the labextension."""

from __future__ import annotations

import posixpath
import shlex

import msgspec

from jupyter_amltrain.agent.supervise.outcome import GPU_UNUSED
from jupyter_amltrain.inside.pokes import poke_text, running_since
from jupyter_amltrain.kernel.gpu_summary import figure_groups, gpus_text
from jupyter_amltrain.kernel.record_parts import parts_text
from jupyter_amltrain.kernel.throughput import throughput_text
from jupyter_amltrain.output.sweep_table import sweep_lines
from jupyter_amltrain.schema.child_run import most_relevant
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.schema.run import DAMAGED, RunState
from jupyter_amltrain.text import bytes_text, pairs, seconds_text, silence

#: Maximum log lines in the text of an output.
LOG_LINES = 8

#: Maximum steps or trials in the text of an output.
CHILD_ROWS = 12

#: Maximum frames of a failure in the text of an output, and variables of the first one unless its line names more.
FRAMES, FRAME_ROWS = 3, 6

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
    elif record.detail and (not record.done or record.state == RunState.CANCELED):
        lines.append(record.detail)
    began = running_since(record.phases)
    lines += [f"poke {_one_line(poke_text(poke, began))}" for poke in record.pokes]
    lines += frames_lines(record)
    lines += map(_one_line, parts_text(record))
    # The reason of a run that was stopped for it has the same sentences.
    if record.truth is not None and record.truth.verdict == "not used" and record.reason != GPU_UNUSED:
        cause = f"; likely cause: {record.truth.cause}" if record.truth.cause else ""
        lines.append(_one_line(f"GPU IDLE: {record.truth.detail}{cause}"))
    if record.sweep is not None:
        lines += sweep_lines(record.sweep)
        if not record.sweep.own:
            return "\n".join(lines)
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
    lines += gpu_lines(record)
    if hint := _one_line(str(record.summary.get("hint") or "")):
        lines.append(f"hint: {hint}")
    tail = record.log.tail.splitlines()[-log_lines:]
    if tail:
        lines.append(f"log ({bytes_text(record.log.bytes)}, {record.log.path}), last lines:")
        lines += [f"  {line}" for line in tail]
    return "\n".join(lines)


def frames_lines(record: RunRecord) -> list[str]:
    """Return the variables of the lines at which the script failed, of the innermost frames."""
    lines = ["values at failure:"] if record.frames else []
    for frame in record.frames[:FRAMES]:
        rows = frame.table.rows[: max(1 if frame.folded else FRAME_ROWS, frame.named)]
        title = f"{frame.title}: {frame.code}" if frame.code else frame.title
        lines.append(f"  {_one_line(title)}")
        lines += [f"    {line}" for line in pairs([(name, _one_line(text)) for name, text in rows]).splitlines()]
        hidden = len(frame.table.rows) - len(rows) + frame.table.more
        lines += [f"    and {hidden} more"] if hidden else []
    return lines


def pictures_lines(record: RunRecord) -> list[str]:
    """Return ``figures: figure-1.png, confusion.png and 3 more``."""
    names = [posixpath.basename(display.picture) for display in record.displays if display.picture]
    names += [picture.name for picture in record.pictures]
    more = f" and {record.pictures_hidden} earlier" if record.pictures_hidden else ""
    return [f"figures: {', '.join(map(_one_line, names))}{more}"] if names else []


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


def gpu_lines(record: RunRecord) -> list[str]:
    """Return the GPUs and a line for each group of their figures; none without GPUs."""
    gpu = msgspec.to_builtins(record.gpu) or {}
    if not (names := gpus_text(gpu, record.summary)):
        return []
    several = max(len(gpu.get("gpus") or ()), len(record.summary.get("gpus") or ())) > 1
    rate = throughput_text({name: metric.last for name, metric in record.metrics.items()})
    rows = [(f"  {group.title}", ", ".join(group.texts)) for group in figure_groups(gpu, record.summary, rate)]
    if note := _one_line(str(gpu.get("note") or "")):
        rows.append(("  note", note))
    return [f"GPU{'s' if several else ''}: {names}", *(pairs(rows).splitlines() if rows else [])]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _number(value: float | str | None) -> str:
    return "n/a" if value is None else value if isinstance(value, str) else f"{value:.4g}"
