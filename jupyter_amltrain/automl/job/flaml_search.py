"""The search by FLAML: which models it tries, for how long, and the best one fitted on all rows of the search."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import warnings
from typing import Any, NamedTuple

from .errors import UnusableData
from .metrics import CLASSIFICATION, FORECASTING, engine_metric
from .trials import ModelTrial, TrialJournal

#: Trials of a search without a limit of time that counts none: FLAML's own largest number.
_MANY = 1_000_000
#: For one trial FLAML searches nothing and logs none: the journal leaves the second one out.
_FEWEST = 2
#: Rows up to which trials are compared by cross-validation; FLAML's own rule also looks at the time.
_SMALL = 10_000
_FOLDS, _HELD_OUT = 5, 0.2
#: Models that need a package of their own.
_BOOSTERS = {"lgbm": "lightgbm", "xgboost": "xgboost", "xgb_limitdepth": "xgboost", "catboost": "catboost"}
#: Rows on which an estimator and FLAML's model of it are compared.
_COMPARED = 100
#: Fewest seconds in which a continued search tries anything.
_LEAST_S = 2.0


class Limits(NamedTuple):
    """What ends a search.

    Parameters
    ----------
    seconds
        Of all attempts together; ``None`` for no limit.
    trials
        Of all attempts together; ``None`` for no limit.
    patience
        Whether it may end when the models have converged.
    trial_seconds
        Of one trial.
    """

    seconds: float | None
    trials: int | None
    patience: bool = False
    trial_seconds: float | None = None


class FlamlSearch:
    """One search over models for rows that are numbers.

    Parameters
    ----------
    classes
        Number of classes; 0 for numbers.
    learners
        FLAML's names of models; empty for those that fit.
    """

    def __init__(
        self,
        task: str,
        metric: str,
        classes: int,
        seed: int,
        learners: list[str],
        journal: TrialJournal,
    ) -> None:
        self.task, self._metric, self._seed = task, engine_metric(metric, classes), seed
        self._learners, self._journal = learners, journal
        self._engine_task = CLASSIFICATION if task == CLASSIFICATION else "regression"
        self.jobs = cores()

    def run(self, rows: Any, target: Any, limits: Limits) -> None:
        """Try models until a limit is reached; the journal has the trials."""
        left = None if limits.trials is None else limits.trials - len(self._journal.trials)
        seconds, has_model = limits.seconds, bool(self._journal.trials)
        if (left is not None and left <= 0) or (seconds is not None and seconds < _LEAST_S and has_model):
            return
        settings: dict[str, Any] = {
            "time_budget": -1 if seconds is None else max(1.0, seconds),
            "max_iter": _MANY if left is None else max(_FEWEST, left),
            "early_stop": limits.patience,
            # By its own choice of the next model the measured times decide; in turn, a count gives equal results.
            "learner_selector": "roundrobin" if seconds is None else "sample",
            "estimator_list": self._learners or self._fitting(len(rows)),
            "log_file_name": self._journal.path,
            "log_type": "all",
            "retrain_full": False,
        }
        if limits.trial_seconds:
            settings["train_time_limit"] = limits.trial_seconds
        if points := self._journal.starting_points():
            settings["starting_points"] = points
        if self.task == FORECASTING:
            settings.update(eval_method="holdout", split_type="time", split_ratio=_HELD_OUT)
        elif folds := self._folds(len(rows)):
            settings.update(eval_method="cv", n_splits=folds)
        settings["auto_augment"] = self._has_rare_classes(target)
        self._journal.begin()
        engine().fit(rows, target, **self._common(), **settings)

    def _has_rare_classes(self, target: Any) -> bool:
        """Return whether FLAML must repeat rows, so that each fold has each class: some are then learned and predicted.

        It does so by default for classes of less than twenty rows, whose values in the search are then too good.
        """
        import numpy

        counts = numpy.bincount(target) if self.task == CLASSIFICATION else numpy.array([_FOLDS])
        rarest = int(counts[counts > 0].min())
        if rarest < _FOLDS:
            print(
                f"A class has {rarest} row{'s' * (rarest != 1)}: the search repeats them, and its values are too good."
                " Trust those of the held-out rows.",
                flush=True,
            )
        return rarest < _FOLDS

    def _folds(self, rows: int) -> int:
        """Return the folds of each trial; 0 where a part of the rows is held out."""
        return 0 if self.task == FORECASTING or rows > _SMALL else max(2, min(_FOLDS, rows // 5))

    def fit_seconds(self, rows: int) -> float | None:
        """Return how long the best trial so far needs to be fitted on all rows; ``None`` without a trial."""
        if (best := self._journal.best) is None:
            return None
        folds = self._folds(rows)
        share = folds - 1 if folds else 1 - _HELD_OUT  # of all rows that its trial has fitted, in all folds
        fits = 2 if self.task == FORECASTING else 1  # that model learns from the last steps, too
        return fits * best.seconds * rows / (share * max(1, best.rows))

    def _fitting(self, rows: int) -> Any:
        """Return the models to try: FLAML's choice, for few numbers with a linear one, which it leaves out."""
        if self._engine_task == CLASSIFICATION or rows > _SMALL:
            return "auto"
        boosters = [name for name, module in _BOOSTERS.items() if importlib.util.find_spec(module)]
        return ["enet", "rf", "extra_tree", *boosters, "sgd"]

    def fit_best(self, rows: Any, target: Any, best: ModelTrial, folder: str) -> Any:
        """Return the estimator of the best trial, fitted on all rows."""
        path = os.path.join(folder, "best.jsonl")
        line = {
            "record_id": 0, "iter_per_learner": 1, "logged_metric": None, "trial_time": best.seconds,
            "wall_clock_time": best.seconds, "validation_loss": best.loss, "config": best.config,
            "learner": best.learner, "sample_size": len(rows),
        }  # fmt: skip
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        automl = engine()
        settings = self._common()
        for name in ("metric", "verbose", "mlflow_logging", "seed"):
            settings.pop(name, None)
        automl.retrain_from_log(path, X_train=rows, y_train=target, train_full=True, **settings)
        return plain_estimator(automl.model, rows)

    def _common(self) -> dict[str, Any]:
        return {
            "task": self._engine_task, "metric": self._metric, "n_jobs": self.jobs, "seed": self._seed, "verbose": 0,
            "skip_transform": True, "mlflow_logging": False,
        }  # fmt: skip


def plain_estimator(model: Any, rows: Any) -> Any:
    """Return the estimator inside a model of FLAML, with what FLAML does to the rows before it.

    FLAML's own model where the two do not agree: then who loads it needs FLAML.
    """
    import numpy
    from sklearn.pipeline import make_pipeline

    found = model.estimator
    if (normalizer := getattr(model, "normalizer", None)) is not None:  # of each row for itself, before SGD
        found = make_pipeline(normalizer, found)
    sample = rows[:_COMPARED]
    same = numpy.allclose(numpy.asarray(found.predict(sample), dtype="float64"), model.predict(sample))
    return found if same else model


def engine() -> Any:
    """Return a new search of FLAML, without its talk.

    Raises
    ------
    UnusableData
        It is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from flaml.automl import AutoML
    except ImportError as error:
        raise UnusableData(
            f"FLAML is not installed in the environment of this run ({error}). Install it: pip install 'flaml[automl]'"
        ) from error
    for name in ("flaml", "flaml.automl", "flaml.automl.logger", "flaml.tune.searcher"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return AutoML()


def cores() -> int:
    """Return the processors that this process may use."""
    count = getattr(os, "sched_getaffinity", None)
    return len(count(0)) if count is not None else os.cpu_count() or 1
