"""What a run shows of its model: scores, pictures, the importance of the columns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from .metrics import CLASSIFICATION, METRICS, scores

#: Classes with numbers in their cells, and with names; rows of a scatter plot; columns of the importance.
_NUMBERED, _NAMED, _POINTS, _COLUMNS = 12, 30, 2000, 20
#: Rows of the importance, and how often a column is shuffled at most.
_IMPORTANCE_ROWS, _REPEATS = 2000, 5
_BLUE, _GRAY = "#0072b2", "#8a929b"


class Importance(NamedTuple):
    """How much worse the metric is without what a column says."""

    column: str
    mean: float
    spread: float


def score_model(model: Any, task: str, table: Any, target: Any, only: str = "") -> dict[str, float]:
    """Return the scores of a model on rows that no trial has seen; `only` one, if it is named."""
    predicted, chances = model.predict(table), None
    classes: Sequence[Any] = ()
    if task == CLASSIFICATION:
        classes = list(model.classes_)
        if hasattr(model.estimator, "predict_proba") and only in ("", "roc_auc", "log_loss"):
            chances = model.predict_proba(table)
    return scores(task, target.to_numpy(), predicted, chances, classes, only)


def importance(
    model: Any, task: str, metric: str, table: Any, target: Any, seconds: float | None, seed: int
) -> list[Importance]:
    """Return the permutation importance of the columns, the largest first; empty without time for it.

    Parameters
    ----------
    seconds
        Time that it may take; ``None`` for any.
    """
    from sklearn.inspection import permutation_importance

    rows = min(len(table), _IMPORTANCE_ROWS)
    sample = table.sample(rows, random_state=seed) if rows < len(table) else table
    truth = target.loc[sample.index]
    sign = 1.0 if METRICS[metric].larger else -1.0

    def value(one: Any, x: Any, y: Any) -> float:
        return sign * score_model(one, task, x, y, metric).get(metric, 0.0)

    began = time.monotonic()
    value(model, sample, truth)
    each = (time.monotonic() - began) * (sample.shape[1] + 1)
    repeats = _REPEATS if seconds is None else min(_REPEATS, int(seconds / max(each, 1e-6)))
    if repeats < 1:
        return []
    found = permutation_importance(model, sample, truth, scoring=value, n_repeats=repeats, random_state=seed)
    rows_of = zip(sample.columns, found.importances_mean, found.importances_std, strict=False)
    return sorted((Importance(str(name), float(a), float(b)) for name, a, b in rows_of), key=lambda one: -one.mean)


# ---- pictures


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def confusion_picture(truth: Any, predicted: Any, classes: Sequence[Any], name: str) -> Any:
    """Return the confusion matrix as a figure: shares of each class, with the numbers of rows."""
    from sklearn.metrics import confusion_matrix

    counts = confusion_matrix(truth, predicted, labels=list(classes))
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    side = min(9.0, max(3.6, 1.8 + 0.42 * len(classes)))
    figure = _figure(side + 0.8, side)
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the class", shrink=0.8)
    axes.set(xlabel="predicted", ylabel="true", title=f"Confusion matrix of {name}, held-out rows")
    if len(classes) <= _NAMED:
        labels = [text if len(text) <= 14 else text[:13] + "…" for text in map(str, classes)]
        turned = max(map(len, labels)) * len(labels) > 26
        axes.set_xticks(range(len(labels)), labels, rotation=60 if turned else 0, ha="right" if turned else "center")
        axes.set_yticks(range(len(labels)), labels)
    if len(classes) <= _NUMBERED:
        for row, line in enumerate(counts):
            for column, count in enumerate(line):
                color = "white" if shares[row, column] > 0.55 else "#1b1f23"
                axes.text(column, row, str(int(count)), ha="center", va="center", color=color, size=9)
    return figure


def residual_picture(truth: Any, predicted: Any, name: str, seed: int) -> Any:
    """Return predicted against true values, and the residuals, as a figure."""
    import numpy

    truth, predicted = numpy.asarray(truth, dtype="float64"), numpy.asarray(predicted, dtype="float64")
    shown = numpy.arange(len(truth))
    if len(shown) > _POINTS:
        shown = numpy.random.default_rng(seed).choice(shown, _POINTS, replace=False)
    figure = _figure(8.4, 3.4)
    left, right = figure.subplots(1, 2)
    left.scatter(truth[shown], predicted[shown], s=10, alpha=0.5, color=_BLUE, linewidths=0)
    ends = [min(truth.min(), predicted.min()), max(truth.max(), predicted.max())]
    left.plot(ends, ends, color=_GRAY, linewidth=1)
    left.set(xlabel=f"true {name}", ylabel="predicted", title="Held-out rows")
    residuals = truth - predicted
    right.hist(residuals, bins=min(40, max(8, len(residuals) // 8)), color=_BLUE, alpha=0.8)
    right.axvline(0, color=_GRAY, linewidth=1)
    right.set(xlabel="true - predicted", ylabel="rows", title=f"Residuals: mean {residuals.mean():.3g}")
    return figure


def forecast_picture(times: Any, history: Any, at: Any, truth: Any, predicted: Any, name: str) -> Any:
    """Return the newest history of one series, its held-out end and the forecast of it, as a figure."""
    figure = _figure(8.4, 3.2)
    axes = figure.add_subplot()
    axes.plot(times, history, color=_GRAY, linewidth=1.2, label="training rows")
    axes.plot(at, truth, color="#1b1f23", linewidth=1.4, label="held-out rows")
    axes.plot(at, predicted, color="#d55e00", linewidth=1.6, marker="o", markersize=3, label="forecast")
    axes.set(ylabel=name, title=f"Forecast of the last {len(at)} steps")
    axes.legend(frameon=False, fontsize=8)
    figure.autofmt_xdate()
    return figure


def importance_picture(found: Sequence[Importance], metric: str) -> Any:
    """Return the importance of the columns as a figure."""
    shown = list(found[:_COLUMNS])[::-1]
    figure = _figure(6.4, 0.9 + 0.26 * len(shown))
    axes = figure.add_subplot()
    axes.barh([one.column[:30] for one in shown], [one.mean for one in shown], xerr=[one.spread for one in shown],
              color=_BLUE, ecolor=_GRAY)  # fmt: skip
    axes.axvline(0, color=_GRAY, linewidth=0.8)
    axes.set(xlabel=f"loss of {metric} when the column is shuffled", title="Permutation importance, held-out rows")
    return figure
