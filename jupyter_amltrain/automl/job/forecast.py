"""Forecasts of a time series as a regression: earlier values, the season and the calendar tell the next ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .columns import TableColumns, dates_of, with_text_names
from .errors import UnusableData

#: Steps that are predicted by default: this share of the series, at most so many.
_HORIZON_SHARE, _MAX_HORIZON = 0.1, 24
#: Seconds of a step, at least, and steps of its season.
_SEASONS = ((80 * 86400, 4), (25 * 86400, 12), (6 * 86400, 52), (20 * 3600, 7), (3000, 24), (1, 60))
#: Earlier values beside those of the season, and steps of the mean of earlier ones.
_LAGS, _MEAN = 3, 4
_TARGET = "__target__"


class Series:
    """How the rows of a table are a series in time, or several.

    Attributes
    ----------
    time, ids
        Column with the time; columns that name the series.
    horizon
        Steps that are predicted.
    season
        Steps after which the values resemble each other; 1 for none.
    differs
        Whether the change since a season ago is learned in place of the value.
    """

    def __init__(self, time: str, ids: Sequence[str], horizon: int, season: int, differs: bool = False) -> None:
        self.time, self.ids, self.horizon, self.season, self.differs = time, list(ids), horizon, season, differs

    @property
    def back(self) -> int:
        """Steps back to the newest value of the same season that is known at every predicted step."""
        return math.ceil(self.horizon / self.season) * self.season

    def groups(self, table: Any) -> Any:
        """Return the number of the series of each row."""
        import numpy
        import pandas

        if not self.ids:
            return pandas.Series(numpy.zeros(len(table), dtype="int64"), index=table.index)
        return table.groupby(self.ids, dropna=False, sort=False).ngroup()

    def sorted(self, table: Any) -> Any:
        """Return the rows in the order of their time."""
        return table.sort_values(self.time, kind="stable").reset_index(drop=True)

    def ends(self, table: Any) -> Any:
        """Whether a row is one of the last `horizon` of its series; the rows are sorted."""
        groups = self.groups(table)
        return groups.groupby(groups).cumcount(ascending=False) < self.horizon

    def features(self, table: Any) -> Any:
        """Return what is known of each row at the beginning of its forecast; the rows are sorted, with their target."""
        import pandas

        groups = self.groups(table)
        past = table[_TARGET].groupby(groups)
        parts: dict[str, Any] = {name: table[name] for name in table.columns if name != _TARGET}
        for step in range(_LAGS):
            parts[_ago(self.horizon + step)] = past.shift(self.horizon + step)
        for season in range(2) if self.season > 1 else ():
            parts[_ago(self.back + season * self.season)] = past.shift(self.back + season * self.season)
        width = max(_MEAN, self.season)
        known = past.shift(self.horizon)
        means = known.groupby(groups).rolling(width, min_periods=1).mean()
        parts[f"mean of {width} steps"] = means.reset_index(level=0, drop=True)
        return pandas.DataFrame(parts, index=table.index)

    def base(self, table: Any) -> Any:
        """Return the value a season before each row, to which a predicted change is added."""
        return table[_TARGET].groupby(self.groups(table)).shift(self.back)


def _ago(steps: int) -> str:
    return f"{steps} steps ago"


def time_column_of(table: Any, named: str) -> str:
    """Return the column with the time: the one that is named, or the only one with dates.

    Raises
    ------
    UnusableData
        None is named, and not one column has dates.
    """
    dates = [name for name in table.columns if str(table[name].dtype).startswith(("datetime", "period"))]
    if not named and len(dates) != 1:
        raise UnusableData("A forecast needs the column with the time. Name it: --time-column COLUMN")
    return named or str(dates[0])


def series_of(table: Any, target: Any, time: str, ids: Sequence[str], horizon: int | None) -> tuple[Series, Any]:
    """Return how a table is a series, and its sorted rows with their target.

    Raises
    ------
    UnusableData
        The rows have no order in time, or are too few.
    """
    table = table.assign(**{_TARGET: target.astype("float64"), time: dates_of(table[time])})
    if table[time].isna().any():
        raise UnusableData(f"Column {time} has values that are no dates, so that the rows have no order.")
    if table.duplicated([time, *ids]).any():
        hint = "Name the columns that tell the series apart: --series COLUMN" if not ids else "Keep one row for each."
        raise UnusableData(f"Column {time} has the same time twice. {hint}")
    table = Series(time, ids, 1, 1).sorted(table)
    groups = Series(time, ids, 1, 1).groups(table)
    shortest = int(groups.value_counts().min())
    horizon = horizon or max(1, min(_MAX_HORIZON, int(_HORIZON_SHARE * shortest)))
    if shortest < 3 * horizon + _LAGS:
        raise UnusableData(
            f"The shortest series has {shortest} rows; a forecast of {horizon} steps needs {3 * horizon + _LAGS}."
            f" Use fewer: --horizon {max(1, (shortest - _LAGS) // 3)}"
        )
    step = table[time].groupby(groups).diff().dt.total_seconds().median()
    season = next((season for seconds, season in _SEASONS if step >= seconds), 1)
    series = Series(time, ids, horizon, season if 3 * season <= shortest else 1)
    if shortest < series.back + 3 * horizon:
        series.season = 1
    train = table[~series.ends(table)]
    change = (train[_TARGET] - series.base(train)).dropna()
    series.differs = len(change) >= 10 and bool(change.var() < train[_TARGET].loc[change.index].var())
    return series, table


class ForecastModel:
    """Predicts the next steps of each series; keeps the newest values of the training data.

    Attributes
    ----------
    history
        The rows that a forecast looks back at.
    """

    def __init__(self, series: Series, columns: TableColumns, estimator: Any, history: Any) -> None:
        self.series, self.columns, self.estimator = series, columns, estimator
        reach = series.back + series.season + max(_MEAN, series.season) + series.horizon + _LAGS
        groups = series.groups(history)
        is_near = groups.groupby(groups).cumcount(ascending=False) < reach
        self.history = history[is_near].reset_index(drop=True)

    def predict(self, table: Any) -> Any:
        """Return the predicted value of each row: at most `horizon` rows of each series, after the training data."""
        import numpy
        import pandas

        series = self.series
        rows = with_text_names(table)
        rows = rows.assign(**{series.time: dates_of(rows[series.time])})
        rows = rows.assign(__row__=numpy.arange(len(rows)), **{_TARGET: numpy.nan})
        whole = series.sorted(pandas.concat([self.history.assign(__row__=-1), rows], ignore_index=True))
        if (series.groups(rows).value_counts() > series.horizon).any():
            raise ValueError(f"The model predicts {series.horizon} steps of each series; these are more.")
        places = whole.pop("__row__").to_numpy()
        is_asked = places >= 0
        features = series.features(whole)[is_asked]
        found = self.estimator.predict(self.columns.transform(features))
        if series.differs:
            found = found + series.base(whole)[is_asked].to_numpy()
        result = numpy.empty(len(rows))
        result[places[is_asked]] = found
        return result

    def fit(self, table: Any, target: Any) -> Any:
        """Not supported: a forecast is fitted by its run."""
        raise NotImplementedError("a forecast is fitted by its run")


def rows_of(series: Series, table: Any) -> tuple[Any, Any]:
    """Return features and targets of the rows whose base is known; the rows are sorted."""
    features, target = series.features(table), table[_TARGET]
    if series.differs:
        target = target - series.base(table)
    is_known = target.notna() & features[_ago(series.horizon)].notna()
    return features[is_known], target[is_known]


def naive(series: Series, table: Any) -> list[float]:
    """Return the values a season before the last steps of each series."""
    return [float(value) for value in series.base(table)[series.ends(table)]]


def target_of(table: Any) -> Any:
    """Return the targets of sorted rows."""
    return table[_TARGET]


def without_target(table: Any) -> Any:
    """Return sorted rows as a user has them."""
    return table.drop(columns=[_TARGET])
