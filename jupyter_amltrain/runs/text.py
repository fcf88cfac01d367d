"""A record as plain text: terminals, ``nbconvert``, screens without our renderer."""

from __future__ import annotations

from jupyter_amltrain.spec.record import RunRecord

#: Log lines in the text form of an output.
LOG_LINES = 8


def seconds_text(seconds: float | None) -> str:
    """``0.4 s``, ``12 s``, ``2 min 3 s``, ``1 h 4 min``."""
    if seconds is None:
        return "?"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def bytes_text(size: float | None) -> str:
    """``3.2 MiB``."""
    if size is None:
        return "n/a"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def state_line(record: RunRecord) -> str:
    """``local/digits-k3f9  completed  (queued 0.1 s, running 12 s)``."""
    spans = ", ".join(
        f"{phase.name} {seconds_text(phase.seconds)}" for phase in record.phases if phase.seconds is not None
    )
    words = [record.handle, record.state]
    if record.cancel_requested and not record.done:
        words.append("cancel requested")
    if not record.reachable:
        words.append("target not responding")
    return "  ".join(words) + (f"  ({spans})" if spans else "")


def record_text(record: RunRecord, log_lines: int = LOG_LINES) -> str:
    """The whole record, a few lines."""
    lines = [state_line(record)]
    if record.error:
        lines.append(record.error)
    elif record.detail and not record.done:
        lines.append(record.detail)
    if record.metrics:
        lines.append("  ".join(f"{name} {_number(m.last)}" for name, m in record.metrics.items()))
    lines += [f"{name} = {value!r}" for name, value in record.outputs.items()]
    telemetry = record.telemetry
    if telemetry.memory:
        peaks = [value for value in telemetry.memory if value is not None]
        busy = [value for value in telemetry.cpu if value is not None]
        if peaks and busy:
            mean = sum(busy) / len(busy)
            lines.append(f"host: cpu mean {mean:.0f} %, memory peak {bytes_text(max(peaks))}")
    tail = record.log.tail.splitlines()[-log_lines:]
    if tail:
        lines.append(f"log ({bytes_text(record.log.bytes)}, {record.log.path}), its end:")
        lines += [f"  {line}" for line in tail]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"
