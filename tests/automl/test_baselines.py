"""A search of a minute against tuned models of scikit-learn, on tables that it ships."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_amltrain.automl.job import table
from jupyter_amltrain.automl.job.columns import TableColumns
from tests.helpers import until

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]

TIMEOUT_S = 280
#: How much worse the search may be.
MARGIN = 0.01
SCORES = {"classification": "accuracy", "regression": "r2"}


def folds_of(task: str, kind: str) -> Any:
    """Folds by which models are compared: those of FLAML's search, or the plain ones, which no search has seen."""
    from flaml.config import RANDOM_SEED
    from sklearn.model_selection import KFold, RepeatedKFold, RepeatedStratifiedKFold, StratifiedKFold

    is_class = task == "classification"
    if kind == "plain":
        return (StratifiedKFold if is_class else KFold)(n_splits=5)
    return (RepeatedStratifiedKFold if is_class else RepeatedKFold)(n_splits=5, n_repeats=1, random_state=RANDOM_SEED)


def tuned(task: str, rows: Any, target: Any, folds: Any) -> float:
    """The best value by cross-validation of models of scikit-learn whose parameters were searched on a grid."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import GridSearchCV

    is_class = task == "classification"
    linear = LogisticRegression(max_iter=2000) if is_class else Ridge()
    forest = (RandomForestClassifier if is_class else RandomForestRegressor)(n_estimators=100, random_state=0)
    grids = (
        (linear, {"C": [0.01, 0.1, 1.0, 10.0]} if is_class else {"alpha": [0.1, 1.0, 10.0, 100.0]}),
        (forest, {"max_features": ["sqrt", 0.5], "min_samples_leaf": [1, 3]}),
    )
    searches = [GridSearchCV(one, grid, cv=folds, scoring=SCORES[task]) for one, grid in grids]
    return max(float(search.fit(rows, target).best_score_) for search in searches)


@pytest.mark.parametrize("name", ["load_breast_cancer", "load_wine", "load_diabetes"])
def test_search_of_a_minute_is_as_good_as_tuned_models(api: Any, flaml: dict[str, str], name: str) -> None:
    import numpy
    from flaml.config import RANDOM_SEED
    from sklearn import datasets
    from sklearn.base import clone
    from sklearn.model_selection import cross_val_score
    from sklearn.utils import shuffle

    frame = getattr(datasets, name)(as_frame=True).frame
    task = "regression" if name == "load_diabetes" else "classification"
    run = api.automl(frame, "target", task=task, max_minutes=1, env=flaml).wait(TIMEOUT_S)
    best = run.result("best")
    until(lambda: run.run.tracking == "imported", "the record")
    estimator = model_of(run).estimator
    split = table.split(*table.checked(frame, "target", task), task, table.TEST_SHARE, 0)
    target = numpy.asarray(split.train_target)
    rows = TableColumns(task).fit_transform(split.train, target)
    shuffled = shuffle(rows, target, random_state=RANDOM_SEED)
    baseline = tuned(task, *shuffled, folds_of(task, "flaml"))
    plain = folds_of(task, "plain")
    again = cross_val_score(clone(estimator), rows, target, cv=plain, scoring=SCORES[task]).mean()
    of_plain = tuned(task, rows, target, plain)
    print(f"{name}: {best['validation']:.4f} after {best['trials']} trials ({best['learner']}), tuned {baseline:.4f};"
          f" plain folds {again:.4f}, tuned {of_plain:.4f}")  # fmt: skip
    assert best["validation"] >= baseline - MARGIN
    assert again >= of_plain - MARGIN


def model_of(run: Any) -> Any:
    """The model of a run as scikit-learn has it."""
    import mlflow

    from jupyter_amltrain.tracking.mlflow_store import database_uri

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(database_uri(run.run.project))
    try:
        return mlflow.sklearn.load_model(f"runs:/{run.run.tracking_id}/model")
    finally:
        mlflow.set_tracking_uri(before)
