"""Metrics by their names: what each is, whether it should be large, and how FLAML calls it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

#: Kinds of tasks.
CLASSIFICATION, REGRESSION, FORECASTING = "classification", "regression", "forecasting"
TASKS = (CLASSIFICATION, REGRESSION, FORECASTING)


class ScoreMetric(NamedTuple):
    """One metric.

    Parameters
    ----------
    engine
        FLAML's name; its loss is 1 - value where larger is better.
    larger
        Whether a larger value is better.
    tasks
        Tasks that it is for.
    """

    engine: str
    larger: bool
    tasks: Sequence[str]


_NUMBERS = (REGRESSION, FORECASTING)
METRICS: dict[str, ScoreMetric] = {
    "accuracy": ScoreMetric("accuracy", True, (CLASSIFICATION,)),
    "f1": ScoreMetric("macro_f1", True, (CLASSIFICATION,)),
    "roc_auc": ScoreMetric("roc_auc", True, (CLASSIFICATION,)),
    "log_loss": ScoreMetric("log_loss", False, (CLASSIFICATION,)),
    "r2": ScoreMetric("r2", True, _NUMBERS),
    "rmse": ScoreMetric("rmse", False, _NUMBERS),
    "mae": ScoreMetric("mae", False, _NUMBERS),
    "mape": ScoreMetric("mape", False, _NUMBERS),
}
#: Metric of each task if the user names none.
DEFAULTS = {CLASSIFICATION: "accuracy", REGRESSION: "r2", FORECASTING: "rmse"}


def engine_metric(name: str, classes: int) -> str:
    """Return FLAML's name of a metric; with several classes the area under the curve is that of each against all."""
    return "roc_auc_ovr" if name == "roc_auc" and classes > 2 else METRICS[name].engine


def value_of_loss(name: str, loss: float) -> float | None:
    """Return the value of a metric from FLAML's loss; ``None`` if it is not finite."""
    value = 1.0 - loss if METRICS[name].larger else loss
    return value if math.isfinite(value) else None


def scores(
    task: str, truth: Any, predicted: Any, chances: Any = None, classes: Sequence[Any] = (), only: str = ""
) -> dict[str, float]:
    """Return the metrics of a task on rows that no trial has seen; those that are not defined there are left out.

    Parameters
    ----------
    chances
        Probabilities of the `classes`, if the model has them.
    only
        Name of the only metric; empty for all.
    """
    found: dict[str, float] = {}
    for name, metric in METRICS.items():
        if task not in metric.tasks or only not in ("", name):
            continue
        try:
            value = float(_FUNCTIONS[name](truth, predicted, chances, list(classes)))
        except (ValueError, TypeError, ZeroDivisionError):  # such as a curve over rows of one class
            continue
        if math.isfinite(value):
            found[name] = value
    return found


def _accuracy(truth: Any, predicted: Any, chances: Any, classes: Sequence[Any]) -> float:
    from sklearn.metrics import accuracy_score

    return accuracy_score(truth, predicted)  # type: ignore[no-any-return]


def _f1(truth: Any, predicted: Any, chances: Any, classes: Sequence[Any]) -> float:
    from sklearn.metrics import f1_score

    return f1_score(truth, predicted, average="macro", zero_division=0)  # type: ignore[no-any-return]


def _roc_auc(truth: Any, predicted: Any, chances: Any, classes: Sequence[Any]) -> float:
    from sklearn.metrics import roc_auc_score

    if chances is None:
        raise ValueError("the model has no probabilities")
    if len(classes) == 2:
        return roc_auc_score([one == classes[1] for one in truth], chances[:, 1])  # type: ignore[no-any-return]
    return roc_auc_score(truth, chances, multi_class="ovr", labels=classes)  # type: ignore[no-any-return]


def _log_loss(truth: Any, predicted: Any, chances: Any, classes: Sequence[Any]) -> float:
    from sklearn.metrics import log_loss

    if chances is None:
        raise ValueError("the model has no probabilities")
    return log_loss(truth, chances, labels=classes)  # type: ignore[no-any-return]


def _r2(truth: Any, predicted: Any, chances: Any, classes: Sequence[Any]) -> float:
    from sklearn.metrics import r2_score

    return r2_score(truth, predicted) if len(truth) > 1 else math.nan


def _rmse(truth: Any, predicted: Any, chances: Any, classes: Sequence[Any]) -> float:
    from sklearn.metrics import mean_squared_error

    return math.sqrt(mean_squared_error(truth, predicted))


def _mae(truth: Any, predicted: Any, chances: Any, classes: Sequence[Any]) -> float:
    from sklearn.metrics import mean_absolute_error

    return mean_absolute_error(truth, predicted)  # type: ignore[no-any-return]


def _mape(truth: Any, predicted: Any, chances: Any, classes: Sequence[Any]) -> float:
    from sklearn.metrics import mean_absolute_percentage_error

    return mean_absolute_percentage_error(truth, predicted)  # type: ignore[no-any-return]


_FUNCTIONS: dict[str, Callable[[Any, Any, Any, Sequence[Any]], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "roc_auc": _roc_auc,
    "log_loss": _log_loss,
    "r2": _r2,
    "rmse": _rmse,
    "mae": _mae,
    "mape": _mape,
}
