"""Columns of a table as numbers: missing values, categories, dates and text, learned from the training rows alone."""

from __future__ import annotations

import re
from typing import Any

#: Kinds of columns.
NUMBER, CATEGORY, DATE, TEXT = "number", "category", "date", "text"
#: Categories up to which each gets a column of its own.
MAX_ONE_HOT = 20
#: Share of the values of a column that must be of a kind.
_MIN_SHARE = 0.95
#: Values of a column that are looked at.
_SAMPLE = 1000
#: Words of a value from which on a column is text; words that are counted, and numbers that they become.
_TEXT_WORDS, _VOCABULARY, _TEXT_PARTS = 4, 5000, 24
_DATE = re.compile(r"\s*(\d{4}-\d{1,2}(-\d{1,2})?|\d{1,2}[./]\d{1,2}[./]\d{2,4}|\d{4}/\d{1,2}/\d{1,2})([ T].*)?\s*")
_DATE_PARTS = ("year", "month", "day", "weekday", "hour", "days")


def kind_of(column: Any) -> str:
    """Return the kind of a column by its values; empty for one that says nothing: constant, or all different names."""
    import pandas
    from pandas.api import types

    known = column.dropna()
    if not len(known) or known.astype(str).nunique() < 2:
        return ""
    if types.is_bool_dtype(column) or types.is_numeric_dtype(column):
        return NUMBER
    if types.is_datetime64_any_dtype(column) or isinstance(column.dtype, pandas.PeriodDtype):
        return DATE
    texts = known.astype(str)
    sample = texts.sample(min(len(texts), _SAMPLE), random_state=0)
    if isinstance(column.dtype, types.CategoricalDtype):
        return CATEGORY
    if _share(sample, _is_number) >= _MIN_SHARE:
        return NUMBER
    if _share(sample, lambda text: _DATE.fullmatch(text) is not None) >= _MIN_SHARE:
        return DATE
    distinct = sample.nunique() / len(sample)
    if distinct > 0.2 and sample.str.split().str.len().mean() >= _TEXT_WORDS:
        return TEXT
    return "" if distinct == 1.0 and len(sample) > MAX_ONE_HOT else CATEGORY


def _share(values: Any, test: Any) -> float:
    return float(sum(map(test, values)) / len(values))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def with_text_names(table: Any) -> Any:
    """Return a table whose columns have texts as names; those of several levels have one."""
    return table.set_axis([str(name) for name in table.columns], axis=1)


class TableColumns:
    """Learns from a table how its columns become numbers, and converts others like it.

    Attributes
    ----------
    kinds
        Kind of each column that is used.
    ignored
        Columns that say nothing.
    names
        Names of the numbers.
    """

    def __init__(self, task: str, seed: int = 0, plain: bool = False) -> None:
        self.task, self.seed, self.plain = task, seed, plain
        self.kinds: dict[str, str] = {}
        self.ignored: list[str] = []
        self.names: list[str] = []
        self._parts: Any = None

    def fit_transform(self, table: Any, target: Any) -> Any:
        """Learn the columns of the training rows, and return their numbers.

        Parameters
        ----------
        target
            Numbers, or numbers of classes.
        """
        for name in table.columns:
            kind = kind_of(table[name])
            if kind and not (self.plain and kind == TEXT):
                self.kinds[name] = kind
            else:
                self.ignored.append(str(name))
        classes = len(set(target)) if self.task == "classification" else 0
        frame = self._frame(table)
        self._parts = self._transformer(frame, classes)
        numbers = self._parts.fit_transform(frame, target)
        self.names = [str(name) for name in self._parts.get_feature_names_out()]
        return self._dense(numbers)

    def transform(self, table: Any) -> Any:
        """Return the numbers of other rows; a column that is absent is missing in all of them."""
        return self._dense(self._parts.transform(self._frame(table)))

    def _dense(self, numbers: Any) -> Any:
        import numpy

        return numpy.asarray(numbers.toarray() if hasattr(numbers, "toarray") else numbers, dtype="float64")

    def _frame(self, table: Any) -> Any:
        import numpy
        import pandas

        table, parts = with_text_names(table), {}
        for name, kind in self.kinds.items():
            column = table[name] if name in table.columns else pandas.Series(numpy.nan, index=table.index)
            if kind == NUMBER:
                numbers = pandas.to_numeric(column, errors="coerce").astype("float64")
                parts[str(name)] = numbers.replace([numpy.inf, -numpy.inf], numpy.nan)
            elif kind == DATE:
                for part, values in _date_parts(column).items():
                    parts[f"{name}_{part}"] = values
            else:
                is_missing = column.isna()
                parts[str(name)] = column.astype(object).map(str).where(~is_missing, "" if kind == TEXT else "missing")
        return pandas.DataFrame(parts, index=table.index)

    def _transformer(self, frame: Any, classes: int) -> Any:
        from sklearn.compose import ColumnTransformer
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder

        of_kind = {kind: [str(name) for name, one in self.kinds.items() if one == kind] for kind in (CATEGORY, TEXT)}
        words = {*of_kind[CATEGORY], *of_kind[TEXT]}
        numbers = [name for name in frame.columns if name not in words]
        few = [name for name in of_kind[CATEGORY] if frame[name].nunique() <= MAX_ONE_HOT]
        many = [name for name in of_kind[CATEGORY] if name not in few]
        parts: list[Any] = []
        if numbers:
            fill = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
            parts.append(("number", make_pipeline(fill, StandardScaler()), numbers))
        if few:
            parts.append(("category", OneHotEncoder(handle_unknown="ignore", sparse_output=False), few))
        if many and classes <= 2:
            kind = "binary" if classes else "continuous"
            parts.append(("many", TargetEncoder(target_type=kind, random_state=self.seed), many))
        elif many:  # the means of each class would be a column each
            parts.append(("many", OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), many))
        for name in of_kind[TEXT]:
            if (text := self._text(frame[name])) is not None:
                parts.append((name, text, name))
            else:
                self.ignored.append(name)
        return ColumnTransformer(parts, sparse_threshold=0.0, verbose_feature_names_out=False)

    def _text(self, column: Any) -> Any | None:
        """Return what makes numbers of a column of texts; ``None`` if they have no word in common."""
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.pipeline import make_pipeline

        words = TfidfVectorizer(max_features=_VOCABULARY, min_df=2, sublinear_tf=True)
        try:
            found = len(words.fit(column).vocabulary_)
        except ValueError:
            return None
        size = min(_TEXT_PARTS, found - 1, len(column) - 1)
        return make_pipeline(words, TruncatedSVD(size, random_state=self.seed)) if size >= 1 else None


def dates_of(column: Any) -> Any:
    """Return a column as times; what is no date is missing."""
    import pandas

    if pandas.api.types.is_datetime64_any_dtype(column):
        return column.dt.tz_localize(None) if getattr(column.dt, "tz", None) is not None else column
    if isinstance(column.dtype, pandas.PeriodDtype):
        return column.dt.to_timestamp()
    found = pandas.to_datetime(column, errors="coerce", format="mixed", utc=True)
    return found.dt.tz_localize(None)


def _date_parts(column: Any) -> dict[str, Any]:
    import pandas

    times = dates_of(column)
    days = (times - pandas.Timestamp("2000-01-01")).dt.total_seconds() / 86400
    values = (times.dt.year, times.dt.month, times.dt.day, times.dt.day_of_week, times.dt.hour, days)
    return {name: value.astype("float64") for name, value in zip(_DATE_PARTS, values, strict=False)}
