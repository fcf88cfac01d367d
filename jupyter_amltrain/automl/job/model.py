"""The model that a run logs: columns, the best estimator and the names of its classes; it needs no FLAML."""

from __future__ import annotations

from typing import Any

from .columns import TableColumns


class TableModel:
    """Predicts the target of a table with the columns of the training data.

    Attributes
    ----------
    classes_
        Classes in the order of the probabilities; ``None`` for numbers.
    """

    def __init__(self, columns: TableColumns, estimator: Any, classes: Any | None = None) -> None:
        self.columns, self.estimator, self.classes_ = columns, estimator, classes

    def predict(self, table: Any) -> Any:
        """Return the class or number of each row."""
        predicted = self.estimator.predict(self.columns.transform(table))
        return predicted if self.classes_ is None else self.classes_[predicted.astype("int64")]

    def predict_proba(self, table: Any) -> Any:
        """Return the probability of each class, for each row."""
        import numpy

        chances = self.estimator.predict_proba(self.columns.transform(table))
        if self.classes_ is None or chances.shape[1] == len(self.classes_):
            return chances
        known = getattr(self.estimator, "classes_", range(chances.shape[1]))
        whole = numpy.zeros((len(chances), len(self.classes_)))  # a class that only other rows have
        whole[:, numpy.asarray(known, dtype="int64")] = chances
        return whole

    def fit(self, table: Any, target: Any) -> TableModel:
        """Learn from other rows with the same kind of estimator and its parameters."""
        import numpy
        from sklearn.base import clone

        values = numpy.asarray(target)
        if self.classes_ is not None:
            self.classes_, values = numpy.unique(values, return_inverse=True)
        self.columns = TableColumns(self.columns.task, self.columns.seed, self.columns.plain)
        self.estimator = clone(self.estimator).fit(self.columns.fit_transform(table, values), values)
        return self
