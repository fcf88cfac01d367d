"""A run's use of its GPUs in a few figures, by groups: what the page, the text and the picture show of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from jupyter_amltrain.agent.telemetry.gpu_names import gpu_counts
from jupyter_amltrain.kernel.chart_axes import number_text
from jupyter_amltrain.kernel.run_charts import gpu_label, joined, known_values
from jupyter_amltrain.kernel.throughput import throughput_text
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.schema.table import Column, Table
from jupyter_amltrain.text import bytes_text, seconds_text

#: Error counters of a summary that are shown if not zero, with their singular and plural.
_ERRORS = (
    ("ecc_uncorrectable", "uncorrectable memory error", "uncorrectable memory errors"),
    ("ecc_correctable", "correctable memory error", "correctable memory errors"),
    ("rows_remapped", "replaced memory row", "replaced memory rows"),
    ("remap_failures", "memory row that could not be replaced", "memory rows that could not be replaced"),
    ("pages_retired", "retired memory page", "retired memory pages"),
)
#: Maximum GPUs of the table with a row for each.
_MAX_SUMMARIZED = 16
#: Bytes of a MiB.
_MIB = 1024.0**2
#: Shortest throttling that is shown, in seconds.
_MIN_THROTTLED_S = 0.5
#: Keys of a summary with seconds of throttling, and their causes.
_THROTTLED = (("throttled_power_s", "power limit"), ("throttled_heat_s", "heat"))

#: A GPU of a summary or of a record, as JSON.
_Gpu = Mapping[str, Any]


class Group(NamedTuple):
    """Figures of one kind, as text: ``use``, and ``SM 62 %``, ``utilization 88 %``."""

    title: str
    texts: list[str]


def gpus_text(gpu: _Gpu, summary: _Gpu) -> str:
    """Return ``2 x H100``, or ``H100`` for one; empty without GPUs. Parameters as of :func:`figure_groups`."""
    drawn, summed = gpu.get("gpus") or (), summary.get("gpus") or ()
    return gpu_counts(drawn if len(drawn) >= len(summed) else summed).removeprefix("1 x ") if drawn or summed else ""


def figure_groups(gpu: _Gpu, summary: _Gpu, rate: str = "") -> list[Group]:
    """Return a run's GPU use: from the summary if the run has ended, otherwise from the samples so far.

    Parameters
    ----------
    gpu, summary
        These fields of a record, as JSON. Of several GPUs minimum and maximum are shown.
    rate
        Training throughput as text.

    Returns
    -------
    list
        Groups that have figures; none without GPUs. What no device reports is left out, and what is zero, except how
        busy the GPU was.
    """
    drawn, summed = gpu.get("gpus") or (), summary.get("gpus") or ()
    if not (drawn or summed):
        return []
    figures = _of_summary(summed, drawn) if summed else _of_samples(gpu)
    groups = (
        *figures,
        Group("throughput", [rate.removeprefix("throughput ")] if rate else []),
        Group("errors", error_texts(summed)),
    )
    return [group for group in groups if group.texts]


def _of_summary(summed: Sequence[_Gpu], drawn: Sequence[_Gpu]) -> tuple[Group, ...]:
    energy = [_energy(summed)] if len(_values(summed, "energy_wh")) == len(summed) >= len(drawn) else []
    use = _use(*(_values(summed, f"{name}_mean") for name in ("sm_activity", "tensor_activity", "util")))
    copying = [100 * share for share in _values(summed, "copy_share")]
    return (
        Group("use", [*use, *([f"only copying {_percent(copying)}"] if max(copying, default=0.0) >= 1 else [])]),
        Group(
            "memory",
            _memory([_MIB * v for v in _values(summed, "memory_peak")], _totals(summed, drawn), summed),
        ),
        Group("power", [*_watts(_values(summed, "power_mean")), *filter(None, energy), *throttled_texts(summed)]),
    )


def _of_samples(gpu: _Gpu) -> tuple[Group, ...]:
    drawn = gpu["gpus"]

    def means(name: str) -> list[float]:
        series = [one.get(name) or () for one in drawn] + [(gpu.get(name) or {}).get("mean") or ()]
        return [sum(known) / len(known) for values in series if (known := known_values(values))]

    series = [one.get("memory") or () for one in drawn] + [(gpu.get("memory") or {}).get("high") or ()]
    peaks = [max(known) for values in series if (known := known_values(values))]
    return (
        Group("use", _use(means("sm_activity"), [], means("util"))),
        Group("memory", _memory(peaks, _totals((), drawn), gpu.get("now") or ())),
        Group("power", _watts(means("power"))),
    )


def _use(sm: list[float], tensor: list[float], utilization: list[float]) -> list[str]:
    tensor = tensor if any(tensor) else []
    named = (("SM", sm), ("tensor", tensor), ("utilization", utilization))
    return [f"{title} {_percent(values)}" for title, values in named if values]


def _memory(peaks: list[float], total: float, gpus: Iterable[_Gpu]) -> list[str]:
    """Return the peak on the device, and the allocator's of the GPU with the highest one."""
    words = []
    if any(peaks):
        words = ["peak " + joined([bytes_text(min(peaks)), bytes_text(max(peaks))], bytes_text(total) if total else "")]
    reserved, allocated = max(
        ((_number(gpu, "torch_reserved_peak"), _number(gpu, "torch_allocated_peak")) for gpu in gpus),
        default=(0.0, 0.0),
    )
    if reserved > 0:
        words += [f"allocated {_mib(allocated)}", f"reserved {_mib(reserved)} (PyTorch)"]
    return words


def _watts(values: list[float]) -> list[str]:
    return [f"mean {_span(values)} W"] if any(values) else []


def _energy(summed: Sequence[_Gpu]) -> str:
    hours = sum(_values(summed, "energy_wh"))
    text = f"{number_text(float(f'{hours:.3g}'))} Wh" if hours < 999.5 else f"{hours / 1000:.3g} kWh"
    # Else it is the driver's counter, or a record of an earlier version.
    is_estimated = any(gpu.get("energy_source") == "power" for gpu in summed)
    return (f"energy {text} (estimated)" if is_estimated else f"energy {text}") if hours else ""


def throttled_texts(gpus: Iterable[_Gpu]) -> list[str]:
    """Return ``throttled 12 s (power limit)`` for each cause, of the GPU that was longest."""
    gpus = list(gpus)
    longest = ((max(_values(gpus, key), default=0.0), cause) for key, cause in _THROTTLED)
    return [f"throttled {seconds_text(seconds)} ({cause})" for seconds, cause in longest if seconds >= _MIN_THROTTLED_S]


def error_texts(gpus: Iterable[_Gpu]) -> list[str]:
    """Return Xid numbers and memory error counts, summed over the GPUs."""
    gpus = list(gpus)
    numbers = dict.fromkeys(text for gpu in gpus for text in str(gpu.get("xids") or "")[:100].split(", ") if text)
    words = [f"Xid {' and '.join(numbers)}"] if numbers else []
    for name, one, several in _ERRORS:
        count = sum(int(gpu[name]) for gpu in gpus if isinstance(gpu.get(name), int | float))
        words += [f"{count:,} {one if count == 1 else several}"] if count else []
    return words


def _totals(summed: Sequence[_Gpu], drawn: Sequence[_Gpu]) -> float:
    known = _values(drawn, "memory_total") or [_MIB * v for v in _values(summed, "memory_total")]
    return max(known, default=0.0)


def _values(gpus: Iterable[_Gpu], name: str) -> list[float]:
    return known_values(gpu.get(name) for gpu in gpus)


def _number(gpu: _Gpu, name: str) -> float:
    value = gpu.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _mib(value: float) -> str:
    return bytes_text(value * _MIB)


def _span(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{value:.0f}" for value in (min(values), max(values))))


def _percent(values: Sequence[float]) -> str:
    return f"{_span(values)} %"


# -- tables of an ended run


def summary_tables(record: RunRecord) -> tuple[Table, ...]:
    """Return the groups of an ended run, and of several GPUs the figures of each."""
    gpus: list[_Gpu] = [gpu for gpu in record.summary.get("gpus") or () if isinstance(gpu, dict)]
    if not gpus:
        return ()
    rate = throughput_text({name: metric.last for name, metric in record.metrics.items()})
    groups = figure_groups(msgspec.to_builtins(record.gpu) or {}, {"gpus": gpus}, rate)
    width = 1 + max((len(group.texts) for group in groups), default=0)
    rows = tuple((_title(group), *group.texts, *[""] * (width - 1 - len(group.texts))) for group in groups)
    table = Table("gpu summary", (Column(""),) * width, rows)
    return (table, _each_table(record, gpus)) if len(gpus) > 1 else (table,)


def _title(group: Group) -> str:
    """Return the title of a group in a table, which also stands below charts of the host."""
    return group.title if group.title == "throughput" else f"GPU {group.title}"


def _each_table(record: RunRecord, gpus: Sequence[_Gpu]) -> Table:
    shown, part = gpus[:_MAX_SUMMARIZED], record.gpu
    labels = {} if part is None else {(gpu.node, gpu.index): gpu_label(part, gpu) for gpu in part.gpus}
    several = len({gpu.get("node") for gpu in gpus}) > 1
    differ = len({gpu.get("name") for gpu in gpus}) > 1

    def name(gpu: _Gpu) -> str:
        node, index = gpu.get("node") or 0, gpu.get("index") or 0
        label = labels.get((node, index)) or (f"n{node} " if several else "") + f"GPU {index}"
        return f"{label.replace('GPU ', '')} {(differ and gpu.get('name')) or ''}".strip()

    columns: list[tuple[Column, list[str]]] = [(Column("GPU"), [name(gpu) for gpu in shown])]
    for column, text in _EACH:
        texts = [text(gpu) for gpu in shown]
        if any(texts):
            columns.append((column, texts))
    rows = tuple(zip(*(texts for _, texts in columns), strict=True))
    return Table("gpu each", tuple(column for column, _ in columns), rows, len(gpus) - len(shown))


def _put(key: str, form: Callable[[float], str], *, zero: bool = False) -> Callable[[_Gpu], str]:
    """Return a function from a GPU to the text of a figure; empty if it is unknown, or zero unless `zero`."""
    return lambda gpu: "" if gpu.get(key) is None or not (gpu[key] or zero) else form(gpu[key])


def _peak(gpu: _Gpu) -> str:
    total = gpu.get("memory_total")
    text = _put("memory_peak", _mib)(gpu)
    return joined([text], "" if total is None else _mib(total)) if text else ""


#: Columns of the table with a row for each GPU, and the text of a GPU.
_EACH: tuple[tuple[Column, Callable[[_Gpu], str]], ...] = (
    (Column("SM", True), _put("sm_activity_mean", lambda value: f"{value:.0f} %", zero=True)),
    (Column("tensor", True), _put("tensor_activity_mean", lambda value: f"{value:.0f} %")),
    (Column("utilization", True), _put("util_mean", lambda value: f"{value:.0f} %", zero=True)),
    (Column("memory peak", True), _peak),
    (Column("allocated", True, "Maximum memory of PyTorch's tensors."), _put("torch_allocated_peak", _mib)),
    (Column("reserved", True, "Maximum memory that PyTorch had reserved."), _put("torch_reserved_peak", _mib)),
    (Column("power", True), _put("power_mean", lambda value: f"{value:.0f} W")),
    (Column("energy", True), _put("energy_wh", lambda value: f"{number_text(value)} Wh")),
    (Column("throttled"), lambda gpu: ", ".join(text.removeprefix("throttled ") for text in throttled_texts([gpu]))),
    (Column("errors"), lambda gpu: ", ".join(error_texts([gpu]))),
)
