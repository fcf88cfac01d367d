"""How fast a run trains, from the metrics that people log: samples, images or tokens a second."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: What is counted, the better first: a rate of steps says less than one of samples.
_COUNTED = (
    ("samples", r"samples?|examples?|items?"),
    ("images", r"images?|imgs?"),
    ("sequences", r"sequences?|seqs?|sentences?"),
    ("frames", r"frames?"),
    ("tokens", r"tokens?|toks?"),
    ("batches", r"batch(?:es)?"),
    ("steps", r"steps?|it|its|iters?|iterations?"),
)
_PER_SECOND = r"_?(?:per_?(?:s|sec|secs|second|seconds)|_s|_sec|_second|ps)$"
_RATES = [(unit, re.compile(rf"(?:^|_)(?:{words}){_PER_SECOND}")) for unit, words in _COUNTED]
_PLAIN = re.compile(r"(?:^|_)throughput$")
#: Rates of the evaluation say nothing of the training.
_NOT_TRAINING = re.compile(r"(?:^|_)(?:eval|valid|validation|val|test|predict)_")


def throughput_words(values: Mapping[str, float | None]) -> str:
    """Return ``412 samples/s``; empty where no such metric is logged.

    Parameters
    ----------
    values
        Last value of each metric, by its name.
    """
    found: tuple[int, str] | None = None
    for name, value in values.items():
        plain = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()).strip("_")
        if value is None or not value > 0 or _NOT_TRAINING.search(plain):
            continue
        rank = next((k for k, (_, pattern) in enumerate(_RATES) if pattern.search(plain)), len(_RATES))
        if rank < len(_RATES):
            words = f"{_number(value)} {_RATES[rank][0]}/s"
        elif _PLAIN.search(plain):
            words = f"throughput {_number(value)}"
        else:
            continue
        if found is None or rank < found[0]:
            found = (rank, words)
    return found[1] if found else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
