"""A search of a minute against tuned models of scikit-learn, on tables that it ships."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_amltrain.automl.job import table
from jupyter_amltrain.automl.job.columns import TableColumns

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]

TIMEOUT_S = 280
#: How much worse the search may be.
MARGIN = 0.01


def tuned(task: str, rows: Any, target: Any) -> float:
    """The best value by cross-validation of models of scikit-learn whose parameters were searched on a grid.

    The folds are those of FLAML: between others the values of diabetes differ by two hundredths.
    """
    from flaml.config import RANDOM_SEED
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import GridSearchCV, RepeatedKFold, RepeatedStratifiedKFold
    from sklearn.utils import shuffle

    is_class = task == "classification"
    linear = LogisticRegression(max_iter=2000) if is_class else Ridge()
    forest = (RandomForestClassifier if is_class else RandomForestRegressor)(n_estimators=100, random_state=0)
    grids = (
        (linear, {"C": [0.01, 0.1, 1.0, 10.0]} if is_class else {"alpha": [0.1, 1.0, 10.0, 100.0]}),
        (forest, {"max_features": ["sqrt", 0.5], "min_samples_leaf": [1, 3]}),
    )
    rows, target = shuffle(rows, target, random_state=RANDOM_SEED)
    kind = RepeatedStratifiedKFold if is_class else RepeatedKFold
    folds = kind(n_splits=5, n_repeats=1, random_state=RANDOM_SEED)
    searches = [GridSearchCV(one, grid, cv=folds, scoring="accuracy" if is_class else "r2") for one, grid in grids]
    return max(float(search.fit(rows, target).best_score_) for search in searches)


@pytest.mark.parametrize("name", ["load_breast_cancer", "load_wine", "load_diabetes"])
def test_search_of_a_minute_is_as_good_as_tuned_models(api: Any, flaml: dict[str, str], name: str) -> None:
    import numpy
    from sklearn import datasets

    frame = getattr(datasets, name)(as_frame=True).frame
    task = "regression" if name == "load_diabetes" else "classification"
    run = api.automl(frame, "target", task=task, max_minutes=1, env=flaml).wait(TIMEOUT_S)
    best = run.result("best")
    split = table.split(*table.checked(frame, "target", task), task, table.TEST_SHARE, 0)
    target = numpy.asarray(split.train_target)
    baseline = tuned(task, TableColumns(task).fit_transform(split.train, target), target)
    print(f"{name}: {best['validation']:.4f} after {best['trials']} trials ({best['learner']}), tuned {baseline:.4f}")
    assert best["validation"] >= baseline - MARGIN
