"""The table of a job: read, checked, split into rows for the search and rows that no trial sees."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from .columns import with_text_names
from .errors import UnusableData
from .metrics import CLASSIFICATION, FORECASTING, REGRESSION

#: Fewest rows with a target; share of the rows that no trial sees, and their largest number.
MIN_ROWS, TEST_SHARE, MAX_TEST_ROWS = 10, 0.2, 100_000
#: Different whole numbers up to which a target is taken for classes; share of the rows that they may be.
_MAX_CLASSES, _CLASS_SHARE = 20, 0.1
#: Classes that a classification may have.
MAX_CLASSES = 1000


class Split(NamedTuple):
    """Rows for the search, and rows that no trial sees."""

    train: Any
    train_target: Any
    test: Any
    test_target: Any


def read(data: Any, options: dict[str, Any] | None = None) -> Any:
    """Return a table as a frame of pandas: a frame, an array, or a file (CSV, TSV, Parquet, JSON lines, Excel).

    Parameters
    ----------
    options
        ``files`` below a folder, ``delimiter``, ``encoding``, ``header`` of an MLTable.
    """
    import pandas

    kind = type(data).__name__
    if isinstance(data, pandas.DataFrame):
        frame = data
    elif isinstance(data, (str, os.PathLike)):
        frame = _read_files(os.fspath(data), options or {})
    elif hasattr(data, "to_pandas"):  # polars, Arrow
        frame = data.to_pandas()
    elif isinstance(data, dict) or getattr(data, "ndim", 0) == 2:
        try:
            frame = pandas.DataFrame(data)
        except (ValueError, TypeError) as error:
            hint = " Use its frame." if kind == "Bunch" else " Use a frame of pandas."
            raise UnusableData(f"The data is a {kind} that is no table: {error}.{hint}") from None
    else:
        raise UnusableData(f"The data is a {kind}, which is no table. Use a frame of pandas or a file.")
    return with_text_names(frame)


def usable(frame: Any, options: dict[str, Any]) -> tuple[Any, str]:
    """Return a table without the columns that are left out, and the task.

    Parameters
    ----------
    options
        Of the search: ``target``, ``task``, ``time``, ``series``, ``drop``.

    Raises
    ------
    UnusableData
        It does not have the columns.
    """
    target, task, time = str(options["target"]), options.get("task") or "", str(options.get("time") or "")
    if time or task == FORECASTING:
        frame = _with_time(frame, time)
    drop = list(options.get("drop") or ())
    check_columns(frame.columns, target, [*(options.get("series") or ()), *filter(None, [time])], drop)
    frame = frame.drop(columns=drop)
    return frame, task or (FORECASTING if time else guess_task(frame[target]))


def _with_time(frame: Any, time: str) -> Any:
    """Return a table with the times of its index as a column, if it has none for them."""
    import pandas

    name = str(frame.index.name or "index")
    is_time = isinstance(frame.index, (pandas.DatetimeIndex, pandas.PeriodIndex))
    if not is_time or name in frame.columns or time not in ("", name):
        return frame
    return frame.reset_index(names=name)


def _read_files(path: str, options: dict[str, Any]) -> Any:
    import pandas

    names: list[str] = list(options.get("files") or [])
    if os.path.isdir(path) and not names:
        names = sorted(name for name in os.listdir(path) if _reader(name) and not name.startswith("."))
    paths = [os.path.join(path, name) for name in names] if os.path.isdir(path) else [path]
    if not paths:
        raise UnusableData(f"{path} has no table: no file ends with .csv, .tsv, .parquet, .json or .xlsx.")
    try:
        frames = [_read_file(one, options) for one in paths]
    except UnusableData:
        raise
    except Exception as error:  # readers raise any exception
        raise UnusableData(f"The data cannot be read: {type(error).__name__}: {error}") from error
    return frames[0] if len(frames) == 1 else pandas.concat(frames, ignore_index=True)


def _reader(name: str) -> str:
    suffixes = {"csv": "csv", "txt": "csv", "tsv": "tsv", "parquet": "parquet", "pq": "parquet", "json": "json"}
    suffixes.update({"jsonl": "json", "xlsx": "excel", "xls": "excel"})
    stem = name[:-3] if name.endswith(".gz") else name
    return suffixes.get(stem.rpartition(".")[2].lower(), "")


def _read_file(path: str, options: dict[str, Any]) -> Any:
    import pandas

    kind = options.get("format") or _reader(path)
    if kind == "parquet":
        return pandas.read_parquet(path)
    if kind == "json":
        return pandas.read_json(path, lines=path.rstrip(".gz").endswith("l") or bool(options.get("lines")))
    if kind == "excel":
        return pandas.read_excel(path)
    if not kind:
        raise UnusableData(f"{os.path.basename(path)}: unknown kind of file. Use CSV, TSV, Parquet, JSON or Excel.")
    delimiter = options.get("delimiter") or ("\t" if kind == "tsv" else ",")
    header = None if options.get("header") == "none" else 0
    encoding = options.get("encoding") or "utf-8-sig"
    return pandas.read_csv(path, sep=delimiter, header=header, encoding=encoding, compression="infer")


def check_columns(
    columns: Sequence[Any], target: str, others: Sequence[str] = (), drop: Sequence[str] = (), of: str = "data"
) -> None:
    """Raise for a column that the table does not have; the message names the nearest.

    Parameters
    ----------
    others, drop
        Columns that the search needs besides the target, and those that are left out.
    of
        What the table is called.
    """
    names = [str(name) for name in columns]
    if not names:
        raise UnusableData(f"The {of} has no columns.")
    for name in (target, *others, *drop):
        if name in names:
            continue
        near = difflib.get_close_matches(name, names, 1)
        listed = ", ".join(" ".join(one.split()) for one in names[:12])
        listed += f" and {len(names) - 12} more" if len(names) > 12 else ""
        hint = f"Did you mean {near[0]}?" if near else f"Columns: {listed}."
        raise UnusableData(f"The {of} has no column {name}. {hint}")
    if needed := next((name for name in (target, *others) if name in drop), ""):
        raise UnusableData(f"Column {needed} is needed, and cannot be left out. Remove it from --drop.")
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise UnusableData(f"The {of} has two columns {twice}. Rename one.")
    if len(names) - len(set(drop)) < 2:
        raise UnusableData(f"The {of} has no column besides {target}, so that nothing can predict it.")


def guess_task(target: Any) -> str:
    """Return the task that fits a column: words and few whole numbers are classes."""
    from pandas.api import types

    known = target.dropna()
    if types.is_bool_dtype(known) or not types.is_numeric_dtype(known):
        return CLASSIFICATION
    distinct = known.nunique()
    is_whole = bool((known == known.round()).all())
    if is_whole and distinct <= _MAX_CLASSES and (distinct <= 2 or distinct <= max(2, _CLASS_SHARE * len(known))):
        return CLASSIFICATION
    return REGRESSION


def checked(table: Any, target: str, task: str, of: str = "data") -> tuple[Any, Any]:
    """Return the rows with a target, and their targets: numbers, or classes as they are.

    Parameters
    ----------
    of
        What the table is called.

    Raises
    ------
    UnusableData
        Nothing can be learned from them.
    """
    import pandas

    table = table.reset_index(drop=True)
    values = table[target]
    if pandas.api.types.is_complex_dtype(values):
        raise _no_values(target, "complex")
    is_known = values.notna()
    if task != CLASSIFICATION:
        numbers = pandas.to_numeric(values, errors="coerce").astype("float64")
        wrong = values[is_known & numbers.isna()]
        if len(wrong):
            other = " Use --task classification." if task == REGRESSION else ""
            raise UnusableData(
                f"Column {target} has values that are no numbers, such as {str(wrong.iloc[0])!r}.{other}"
            )
        values = numbers.replace([float("inf"), float("-inf")], float("nan"))
        is_known = values.notna()
    rows = int(is_known.sum())
    if rows < MIN_ROWS:
        which = "" if rows == len(table) else f" with a value of {target}"
        raise UnusableData(f"The {of} has {rows} row{'s' * (rows != 1)}{which}; at least {MIN_ROWS} are needed.")
    values = values[is_known]
    try:
        distinct = values.nunique()
    except TypeError:  # lists, mappings
        raise _no_values(target, type(values.iloc[0]).__name__) from None
    if distinct < 2:
        raise UnusableData(
            f"Column {target} of the {of} is the same in every row ({values.iloc[0]}): there is nothing to predict."
        )
    if task == CLASSIFICATION:
        if distinct > min(MAX_CLASSES, rows // 2):
            hint = "Use --task regression." if pandas.api.types.is_numeric_dtype(values) else "Name another column."
            raise UnusableData(
                f"Column {target} has {distinct} different values in {rows} rows: too many for classes. {hint}"
            )
        if not pandas.api.types.is_numeric_dtype(values):
            values = values.astype(object).map(str)
    return table[is_known].drop(columns=[target]), values


def _no_values(target: str, kind: str) -> UnusableData:
    return UnusableData(f"Column {target} has values of type {kind}; a model predicts numbers or words.")


def split(table: Any, target: Any, task: str, share: float, seed: int) -> Split:
    """Return rows for the search and rows that no trial sees, each class in both where it has enough rows.

    Raises
    ------
    UnusableData
        The rows for the search would have one class only.
    """
    from sklearn.model_selection import train_test_split

    assert task != FORECASTING  # which is split by time
    size = min(max(1, round(share * len(table))), MAX_TEST_ROWS)
    classes = None
    if task == CLASSIFICATION:
        counts = target.value_counts()
        size = max(size, min(len(counts), len(table) // 3))
        # Rare classes are one stratum, so that splitting never fails on them.
        classes = target.where(target.map(counts) >= 3, other=counts.index[0])
        if classes.value_counts().min() < 2 or size < classes.nunique():
            classes = None
    parts = train_test_split(table, target, test_size=size, random_state=seed, stratify=classes)
    train, test, train_target, test_target = parts
    if train_target.nunique() < 2:
        raise UnusableData("All rows but a few have the same value of the target: there is nothing to predict.")
    return Split(train, train_target, test, test_target)
