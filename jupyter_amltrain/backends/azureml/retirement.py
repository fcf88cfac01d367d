"""When Azure retires sizes of machines: the project's table of the published dates. Pure.

The service still lists a size for a while after that day, with a price, and refuses it later.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from importlib import resources

#: A size is warned of so long before its day.
NOTICE = datetime.timedelta(days=365)


@functools.lru_cache(maxsize=1)
def _series() -> tuple[tuple[re.Pattern[str], datetime.date], ...]:
    text = resources.files("jupyter_amltrain.backends.azureml").joinpath("retired.json").read_text(encoding="utf-8")
    return tuple(
        (re.compile(pattern), datetime.date.fromisoformat(day)) for pattern, day in json.loads(text)["series"].values()
    )


@functools.lru_cache(maxsize=4096)
def retirement_date(size: str) -> datetime.date | None:
    """The day on which Azure retires a size; ``None`` where none is announced."""
    name = size.strip().lower()
    name = name if name.startswith(("standard_", "basic_")) else f"standard_{name}"
    return next((day for pattern, day in _series() if pattern.fullmatch(name)), None)


def is_retired(size: str, today: datetime.date | None = None) -> bool:
    """Whether that day has come."""
    day = retirement_date(size)
    return day is not None and day <= (today or datetime.date.today())


def retirement_text(size: str, today: datetime.date | None = None) -> str:
    """``retired 2025-09-30``, ``until 2027-03-31`` within :data:`NOTICE`; else empty."""
    day, now = retirement_date(size), today or datetime.date.today()
    if day is None or day > now + NOTICE:
        return ""
    return f"retired {day}" if day <= now else f"until {day}"


def retirement_warning(size: str, today: datetime.date | None = None) -> str:
    """A sentence for a person who wants to use a size; empty where there is nothing to say."""
    text = retirement_text(size, today)
    if not text:
        return ""
    day = retirement_date(size)
    if text.startswith("retired"):
        return f"Warning: Azure retired {size} on {day}: it may refuse the size, or stop its machines."
    return f"Warning: Azure retires {size} on {day}: its machines stop then."
