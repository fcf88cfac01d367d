"""One run of automated machine learning: reads the table, searches, and logs the best model with what it shows."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from typing import Any, NamedTuple

from . import forecast, report, table
from .clock import Clock, Deadline
from .columns import TableColumns
from .errors import FINAL_EXIT_CODE, Stopped, UnusableData
from .flaml_search import FlamlSearch, Limits, engine
from .metrics import CLASSIFICATION, DEFAULTS, FORECASTING, METRICS, scores
from .model import TableModel
from .trials import Board, ModelTrial, TrialJournal, run_folder, write_children

#: Files of the run folder, and of its model.
_CANCEL, _MODEL = "cancel", "model"
#: Rows of the example of the model's signature.
_EXAMPLE_ROWS = 200
#: Seconds of computing between two attempts to stop the search of a canceled run.
_STOP_INTERVAL_S = 0.2


def run(data: Any, options: dict[str, Any], test: Any = None) -> dict[str, Any]:
    """Search the best model for a column of a table; return what was found.

    Parameters
    ----------
    data
        A frame, an array, or a path; see :func:`.table.read`.
    options
        See ``automl/options.py`` of jupyter_amltrain.
    test
        Rows to score the model on; default a part of the data.
    """
    warnings.filterwarnings("ignore", category=UserWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=ResourceWarning)
    try:
        return _Run(options, test).run(data)
    except UnusableData as error:
        write_children(run_folder(), {"runs": [], "message": str(error)})
        print(error, file=sys.stderr, flush=True)
        sys.exit(FINAL_EXIT_CODE)


class Prepared(NamedTuple):
    """Rows of the search as numbers, and what a model of them needs."""

    task: str
    metric: str
    columns: TableColumns
    rows: Any
    target: Any
    classes: Any | None = None
    split: table.Split | None = None
    series: forecast.Series | None = None
    sorted: Any = None


class _Run:
    def __init__(self, options: dict[str, Any], test: Any) -> None:
        self._options, self._test, self._began = options, test, _process_start()
        self._seed = int(options.get("seed") or 0)
        self._is_stopped = self._may_stop = self._is_logged = False
        self._failure = ""

    def run(self, data: Any) -> dict[str, Any]:
        engine()  # before the data is read: without it nothing can be done
        import mlflow

        _import_end()
        frame = table.read(data, self._options.get("read"))
        prepared = self._prepared(frame)
        run_id = (mlflow.active_run() or mlflow.start_run()).info.run_id
        checkpoints = os.environ.get("AML_CHECKPOINT_DIR") or tempfile.mkdtemp()
        shape = {"rows": len(prepared.rows), "columns": prepared.columns.names, "metric": prepared.metric}
        journal = TrialJournal(
            checkpoints, prepared.metric, {**self._options, **shape, "max_minutes": None}, self._began
        )
        search = FlamlSearch(
            prepared.task, prepared.metric, 0 if prepared.classes is None else len(prepared.classes), self._seed,
            list(self._options.get("learners") or ()), journal,
        )  # fmt: skip
        mlflow.log_params({"task": prepared.task, "metric": prepared.metric, "rows": len(frame), "seed": self._seed})
        board = Board(journal, prepared.metric, run_folder(), lambda trial: _log_best(run_id, prepared.metric, trial))
        clock = Clock(self._seconds, self._began, journal.earlier_s, len(prepared.rows))
        if journal.continued:
            print(f"Continues after {journal.continued} trials of an earlier attempt.", flush=True)
        board.start()
        searching = time.monotonic()
        self._search(search, prepared, clock)
        board.close()
        return self._finish(search, prepared, journal, clock, searching)

    @property
    def _seconds(self) -> float | None:
        minutes = self._options.get("max_minutes")
        return None if minutes is None else 60.0 * float(minutes)

    # ---- rows

    def _prepared(self, frame: Any) -> Prepared:
        options, target = self._options, str(self._options["target"])
        frame, task = table.usable(frame, options)
        if not options.get("task"):
            print(f"The task is {task}, by the values of {target}. Choose another one with --task.", flush=True)
        metric = options.get("metric") or DEFAULTS[task]
        if task not in METRICS[metric].tasks or (task == FORECASTING and metric in ("r2", "mape")):
            fitting = [name for name, one in METRICS.items() if task in one.tasks]
            raise UnusableData(f"{metric} is no metric of {task}. Supported: {', '.join(fitting)}.")
        rows, values = table.checked(frame, target, task)
        prepare = self._forecast if task == FORECASTING else self._rows
        return prepare(task, metric, rows, values)

    def _rows(self, task: str, metric: str, rows: Any, values: Any) -> Prepared:
        import numpy

        share = float(self._options.get("test_share") or table.TEST_SHARE)
        if self._test is not None:
            given = table.read(self._test, self._options.get("read"))
            target = str(self._options["target"])
            table.check_columns(given.columns, target, of="test data")
            split = table.Split(rows, values, *table.checked(given, target, task, "test data"))
        else:
            split = table.split(rows, values, task, share, self._seed)
        classes, numbers = None, split.train_target.to_numpy()
        if task == CLASSIFICATION:
            classes, numbers = numpy.unique(numbers, return_inverse=True)
        columns = TableColumns(task, self._seed, bool(self._options.get("plain")))
        matrix = columns.fit_transform(split.train, numbers)
        self._print_rows(columns, len(split.train), len(split.test), "" if classes is None else len(classes))
        return Prepared(task, metric, columns, matrix, numbers, classes, split)

    def _forecast(self, task: str, metric: str, rows: Any, values: Any) -> Prepared:
        options = self._options
        if self._test is not None:
            raise UnusableData("A forecast has no --test-data: the last steps of each series are held out.")
        time_column = forecast.time_column_of(rows, str(options.get("time") or ""))
        ids = [str(name) for name in options.get("series") or ()]
        series, ordered = forecast.series_of(rows, values, time_column, ids, options.get("horizon"))
        features, target = forecast.rows_of(series, ordered[~series.ends(ordered)])
        columns = TableColumns(task, self._seed, bool(options.get("plain")))
        matrix = columns.fit_transform(features, target.to_numpy())
        self._print_rows(columns, len(features), int(series.ends(ordered).sum()), "")
        print(f"Forecasts {series.horizon} steps, season {series.season}.", flush=True)
        return Prepared(task, metric, columns, matrix, target.to_numpy(), series=series, sorted=ordered)

    def _print_rows(self, columns: TableColumns, train: int, test: int, classes: Any) -> None:
        if not columns.kinds:
            raise UnusableData("No column says anything: each is constant, or different in every row.")
        kinds, names = len(columns.kinds), len(columns.names)
        text = f"Searches with {train} rows, holds out {test};"
        text += f" {kinds} column{'s' * (kinds != 1)} as {names} number{'s' * (names != 1)}"
        text += f", {classes} classes" if classes else ""
        print(text + ".", flush=True)
        if columns.ignored:
            print(f"Leaves out columns that say nothing: {', '.join(columns.ignored[:20])}.", flush=True)

    # ---- the search

    def _search(self, search: FlamlSearch, prepared: Prepared, clock: Clock) -> None:
        limits = Limits(
            clock.for_trials, self._options.get("max_trials"),
            bool(self._options.get("patience")), self._options.get("trial_seconds"),
        )  # fmt: skip
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGVTALRM, self._stop)
        deadline = Deadline(clock, lambda: search.fit_seconds(len(prepared.rows)), signal.SIGVTALRM)
        self._may_stop = not self._is_stopped
        if clock.left is not None:
            deadline.start()
        try:
            search.run(prepared.rows, prepared.target, limits)
        except Stopped:
            self._may_stop = False
            if self._is_stopped:
                print("Canceled: keeps the best model so far.", flush=True)
        except UnusableData:
            raise
        except Exception as error:  # of a model: what the others have found is kept
            traceback.print_exc()
            self._failure = f"The search failed: {type(error).__name__}: {error}"
            print(f"{self._failure}. Keeps the best model so far.", flush=True)
        finally:
            self._may_stop = False
            deadline.close()
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _on_sigterm(self, *_: Any) -> None:
        if not os.path.exists(os.path.join(run_folder() or ".", _CANCEL)):  # the machine goes away: it starts again
            os._exit(128 + signal.SIGTERM)
        self._is_stopped = True
        # A library may swallow the exception, where its own code calls Python: so it comes again.
        signal.setitimer(signal.ITIMER_VIRTUAL, _STOP_INTERVAL_S, _STOP_INTERVAL_S)
        self._stop()

    def _stop(self, *_: Any) -> None:
        if self._may_stop:
            raise Stopped

    # ---- the result

    def _finish(
        self, search: FlamlSearch, prepared: Prepared, journal: TrialJournal, clock: Clock, searching: float
    ) -> dict[str, Any]:
        best = journal.best
        if best is None:
            raise UnusableData(
                self._failure or "No trial ended in this time. Give it more: --max-minutes, or fewer rows."
            )
        with tempfile.TemporaryDirectory() as folder:
            estimator = search.fit_best(prepared.rows, prepared.target, best, folder)
        seconds = round(time.monotonic() - searching, 2)
        if prepared.series is not None:
            found, model, example, pictures = self._scored_forecast(search, prepared, best, estimator)
        else:
            found, model, example, pictures = self._scored(prepared, estimator)
        result = {"learner": best.learner, "parameters": best.params, "trials": len(journal.trials),
                  "validation": best.value, "seconds": seconds, "scores": found}  # fmt: skip
        self._print_result(prepared, best, result)
        self._log(prepared, result, model, example, pictures, journal)
        if self._options.get("explain") and not self._is_stopped and prepared.split is not None:
            self._explain(prepared, model, clock)
        return result

    def _scored(self, prepared: Prepared, estimator: Any) -> Any:
        assert prepared.split is not None
        test, truth = prepared.split.test, prepared.split.test_target
        model = TableModel(prepared.columns, estimator, prepared.classes)
        if self._is_stopped:  # the scores can wait, the model cannot
            self._log_model(model, test)
        found = report.score_model(model, prepared.task, test, truth)
        name = str(self._options["target"])
        if prepared.task == CLASSIFICATION:
            assert prepared.classes is not None
            classes = [*prepared.classes, *sorted(set(truth) - set(prepared.classes))]
            pictures = {"confusion_matrix": lambda: report.confusion_picture(truth, model.predict(test), classes, name)}
        else:
            pictures = {"residuals": lambda: report.residual_picture(truth, model.predict(test), name, self._seed)}
        return found, model, test, pictures

    def _scored_forecast(self, search: FlamlSearch, prepared: Prepared, best: ModelTrial, estimator: Any) -> Any:
        series, ordered = prepared.series, prepared.sorted
        assert series is not None
        is_end = series.ends(ordered)
        model = forecast.ForecastModel(series, prepared.columns, estimator, ordered[~is_end])
        ends = forecast.without_target(ordered[is_end])
        truth, predicted = forecast.target_of(ordered)[is_end], model.predict(ends)
        found = scores(prepared.task, truth.to_numpy(), predicted)
        plain = scores(prepared.task, truth.to_numpy(), forecast.naive(series, ordered))
        found["naive_rmse"] = plain.get("rmse", float("nan"))
        groups = series.groups(ordered)
        is_first, known = groups == groups.iloc[-1], ordered[series.time]
        past = ordered[is_first & ~is_end].tail(6 * series.horizon + 2 * series.season)
        at = ordered[is_first & is_end]
        line = predicted[(groups[is_end] == groups.iloc[-1]).to_numpy()]
        pictures = {
            "forecast": lambda: report.forecast_picture(
                past[series.time], forecast.target_of(past), known[at.index], forecast.target_of(at), line,
                str(self._options["target"]),
            ),
            "residuals": lambda: report.residual_picture(truth, predicted, str(self._options["target"]), self._seed),
        }  # fmt: skip
        # The newest values tell most about the next ones: the model that is logged has learned from them, too.
        features, target = forecast.rows_of(series, ordered)
        columns = TableColumns(prepared.task, self._seed, bool(self._options.get("plain")))
        rows = columns.fit_transform(features, target.to_numpy())
        with tempfile.TemporaryDirectory() as folder:
            last = search.fit_best(rows, target.to_numpy(), best, folder)
        return found, forecast.ForecastModel(series, columns, last, ordered), ends, pictures

    def _print_result(self, prepared: Prepared, best: ModelTrial, result: dict[str, Any]) -> None:
        texts = [f"{name} {value:.6g}" for name, value in result["scores"].items()]
        value = f"{prepared.metric} {best.value:.6g} in the search"
        print(f"Best of {result['trials']} trials: {best.learner}, {value}.")
        print(f"On the held-out rows: {', '.join(texts)}.", flush=True)

    def _log(
        self,
        prepared: Prepared,
        result: dict[str, Any],
        model: Any,
        example: Any,
        pictures: dict[str, Any],
        journal: TrialJournal,
    ) -> None:
        import mlflow

        mlflow.log_metrics({name: value for name, value in result["scores"].items() if value == value})
        mlflow.log_params({"learner": result["learner"], "trials": result["trials"]})
        self._log_model(model, example)
        rows = [
            {"number": one.number, "value": one.value, "seconds": one.seconds, **one.params} for one in journal.trials
        ]
        mlflow.log_text(json.dumps(rows, indent=1), "trials.json")
        for name, make in pictures.items():
            _log_picture(name, make)

    def _log_model(self, model: Any, example: Any) -> None:
        if not self._is_logged:
            _log_model(model, example, str(self._options.get("register") or ""))
        self._is_logged = True

    def _explain(self, prepared: Prepared, model: Any, clock: Clock) -> None:
        import mlflow

        assert prepared.split is not None
        seconds = None if clock.left is None or self._seconds is None else clock.left + 0.05 * self._seconds
        found = report.importance(
            model, prepared.task, prepared.metric, prepared.split.test, prepared.split.test_target, seconds, self._seed
        )
        if not found:
            print("--explain: no time is left for it. Give the run more: --max-minutes", flush=True)
            return
        print(f"Importance (loss of {prepared.metric} when the column is shuffled):")
        for one in found[:10]:
            print(f"  {one.column[:28]:<28} {one.mean:8.4f} ± {one.spread:.4f}")
        mlflow.log_text(json.dumps([one._asdict() for one in found], indent=1), "importance.json")
        _log_picture("importance", lambda: report.importance_picture(found, prepared.metric))


def _import_end() -> None:
    """Import what the end of the run needs, before the search: a canceled run has ten seconds for its model.

    A first model is saved and forgotten, because MLflow imports much of it only then.
    """
    import mlflow.sklearn
    import sklearn.metrics  # noqa: F401
    from sklearn.dummy import DummyClassifier

    logging.getLogger("mlflow.sklearn").setLevel(logging.ERROR)  # it warns of pickles, which hold the run's own classes
    if importlib.util.find_spec("matplotlib") is not None:
        import matplotlib.figure  # noqa: F401
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, _MODEL)
        mlflow.sklearn.save_model(DummyClassifier(), path, pip_requirements=[], serialization_format="cloudpickle")


def _log_best(run_id: str, metric: str, trial: ModelTrial) -> None:
    """Log the best value so far; a failure is only noted."""
    import mlflow

    try:
        mlflow.MlflowClient().log_metric(run_id, "validation_" + metric, float(trial.value or 0.0), step=trial.number)
    except Exception as error:  # the search goes on without it
        print(f"The best value cannot be logged: {error}", flush=True)


def _log_model(model: Any, example: Any, name: str) -> None:
    """Log the model with its signature; its code travels in it, so that it needs neither FLAML nor this package."""
    import cloudpickle
    import mlflow
    import mlflow.sklearn

    logging.getLogger("mlflow.store.model_registry").setLevel(logging.ERROR)  # it waits for nothing, and says how long
    package = sys.modules[__package__ or __name__]
    cloudpickle.register_pickle_by_value(package)
    head = example.head(_EXAMPLE_ROWS)
    head = head.astype({column: object for column in head.columns if str(head[column].dtype) == "category"})
    signature = mlflow.models.infer_signature(head, model.predict(head))
    settings: dict[str, Any] = {"registered_model_name": name} if name else {}
    mlflow.sklearn.log_model(
        model, name=_MODEL, signature=signature, pip_requirements=requirements(model.estimator),
        serialization_format="cloudpickle", **settings,
    )  # fmt: skip


def requirements(estimator: Any) -> list[str]:
    """Return the packages that the model needs, with their versions here."""
    from importlib.metadata import PackageNotFoundError, version

    last = estimator[-1] if hasattr(estimator, "steps") else estimator
    own = type(last).__module__.partition(".")[0]
    names = ["mlflow", "scikit-learn", "pandas", "numpy", "cloudpickle"]
    names += {
        "lightgbm": ["lightgbm"],
        "xgboost": ["xgboost", "xgboost-cpu"],
        "catboost": ["catboost"],
        "flaml": ["flaml", "lightgbm", "xgboost"],
    }.get(own, [])
    found = []
    for name in names:
        try:
            found.append(f"{name}=={version(name)}")
        except PackageNotFoundError:
            continue
    return found


def _log_picture(name: str, make: Any) -> None:
    """Log a figure; without Matplotlib, or if it cannot be drawn, the run goes on."""
    import mlflow

    if importlib.util.find_spec("matplotlib") is None:
        print(f"Matplotlib is not installed in the environment of this run: no picture of {name}.", flush=True)
        return
    try:
        mlflow.log_figure(make(), name + ".png")
    except Exception as error:  # a picture must not cost the model
        print(f"The picture of {name} cannot be drawn: {error}", flush=True)


def _process_start() -> float:
    """Return when this process started, in Unix seconds; now if the system does not tell."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime", encoding="ascii") as file:
            up = float(file.read().split()[0])
        age = up - ticks / os.sysconf("SC_CLK_TCK")
        return time.time() - max(0.0, min(age, 600.0))
    except (OSError, ValueError, IndexError):
        return time.time()
