"""Options of a search for the best model, checked; the job gets them as a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from jupyter_amltrain.automl.job.metrics import CLASSIFICATION, DEFAULTS, FORECASTING, METRICS, TASKS
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.kernel.models import checked_name
from jupyter_amltrain.schema.sweep import Objective, OwnTrials
from jupyter_amltrain.text import close_matches, did_you_mean

#: Minutes of a search without a limit.
DEFAULT_MINUTES = 10.0
ENGINES = ("flaml",)
#: Models that FLAML knows for tables.
LEARNERS = (
    "lgbm", "xgboost", "xgb_limitdepth", "rf", "extra_tree", "catboost", "histgb", "kneighbor", "lrl1", "lrl2", "svc",
    "sgd", "enet", "lassolars",
)  # fmt: skip


class SearchOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is searched, and how long.

    Attributes
    ----------
    target
        Column that the model predicts.
    task, metric
        Empty: by the values of the target, and the metric of the task.
    max_minutes, max_trials
        Limits; without any, :data:`DEFAULT_MINUTES`.
    trial_seconds
        Limit of one trial.
    patience
        Whether the search may end before its time when the models have converged.
    learners
        FLAML's names of models; empty for those that fit.
    test_share
        Share of the rows that no trial sees.
    time, series, horizon
        Of a forecast: column with the time, columns that name the series, number of steps.
    drop
        Columns that are not used.
    plain
        Whether texts are left out and nothing is guessed of them.
    explain
        Whether the importance of the columns is computed.
    register
        Name under which the model is registered.
    read
        How files are read: ``files``, ``format``, ``delimiter``, ``encoding``, ``header``.
    """

    target: str
    task: str = ""
    metric: str = ""
    max_minutes: float | None = None
    max_trials: int | None = None
    trial_seconds: float | None = None
    patience: bool = False
    seed: int = 0
    learners: tuple[str, ...] = ()
    test_share: float = 0.0
    time: str = ""
    series: tuple[str, ...] = ()
    horizon: int | None = None
    drop: tuple[str, ...] = ()
    plain: bool = False
    explain: bool = False
    register: str = ""
    read: dict[str, Any] = {}

    @property
    def own_trials(self) -> OwnTrials:
        """The goal of the trials, for the board of the run."""
        larger = METRICS[self.metric].larger
        objective = Objective(self.metric, "maximize" if larger else "minimize")
        return OwnTrials(objective=objective, searcher="FLAML", max_trials=self.max_trials)

    def as_dict(self) -> dict[str, Any]:
        """Return what the job gets: options that are not the default."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def checked(search: SearchOptions) -> SearchOptions:
    """Return a search with its metric and limits.

    Raises
    ------
    CommandError
        A value is invalid.
    """
    task = search.task
    _one_of("--task", task, TASKS, "task")
    if search.horizon is not None and search.horizon < 1:
        raise CommandError("--horizon must be 1 or more.", hint="Example: --horizon 12", field="horizon")
    of_forecasts = {"--time-column": search.time, "--series": search.series, "--horizon": search.horizon}
    if task != FORECASTING and (flag := next((flag for flag, value in of_forecasts.items() if value), "")):
        raise CommandError(
            f"{flag} is for forecasts, and the task is {task}.", hint="Use: --task forecasting",
            field=flag.lstrip("-").replace("-column", ""),
        )  # fmt: skip
    if search.max_minutes is not None and not 0 < search.max_minutes <= 60 * 24 * 30:
        raise CommandError(
            f"--max-minutes {search.max_minutes:g}: more than 0 and at most 43200.", hint="Example: --max-minutes 10",
            field="max_minutes",
        )  # fmt: skip
    if search.max_trials == 0:
        raise CommandError("--max-trials must be 1 or more.", hint="Example: --max-trials 50", field="max_trials")
    if search.test_share and not 0.01 <= search.test_share <= 0.9:
        raise CommandError(
            f"--test-share {search.test_share:g}: from 0.01 to 0.9.", hint="Example: 0.2", field="test_share"
        )
    for name in search.learners:
        _one_of("--learners", name, LEARNERS, "learners")
    if search.register:
        try:
            checked_name(search.register)
        except CommandError as error:
            raise error.about("--register") from None
    if search.metric:
        names = metrics_of(task)
        _one_of(f"--metric of {task}", search.metric, names, "metric")
    changes: dict[str, Any] = {"metric": search.metric or DEFAULTS[task]}
    if search.max_minutes is None and search.max_trials is None:
        changes["max_minutes"] = DEFAULT_MINUTES
    return msgspec.structs.replace(search, **changes)


def metrics_of(task: str) -> list[str]:
    """Return the metrics by which the trials of a task can be compared."""
    names = [name for name, metric in METRICS.items() if task in metric.tasks]
    return [name for name in names if task != FORECASTING or name not in ("r2", "mape")]


def _one_of(flag: str, value: str, names: Sequence[str], field: str) -> None:
    if value not in names:
        hint = did_you_mean(close_matches(value, names, 1), f"Supported: {', '.join(names)}.")
        raise CommandError(f"{flag}: unknown value {value[:80]!r}.", hint=hint, code="automl.value", field=field)


def check_engine(name: str) -> None:
    """Raise :class:`CommandError` for another engine than FLAML."""
    if name not in ENGINES:
        raise CommandError(
            f"--engine {name}: only FLAML is built in.",
            hint="Leave it out, or call another one in a cell of your own with %%aml_submit",
            code="automl.engine",
            field="engine",
        )


__all__ = [
    "CLASSIFICATION",
    "DEFAULT_MINUTES",
    "ENGINES",
    "FORECASTING",
    "LEARNERS",
    "SearchOptions",
    "check_engine",
    "checked",
]
