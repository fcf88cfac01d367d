"""VM sizes with their GPUs, prices, retirement and quotas. No I/O except for the files that the service process stores.

The model and memory of a size's GPUs are in ``gpus.json`` (with source and date): the service reports only
their number. Retired sizes are in ``retired.json``. Everything else is from the service.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.errors import CommandError, QuotaExceeded
from jupyter_amltrain.text import counted

UNKNOWN = "unknown"
GIB = 1 << 30


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """A VM size.

    Attributes
    ----------
    memory
        Bytes of main memory.
    gpus
        Number of whole GPUs in the service's count; `part` is the fraction for sizes with a part of a GPU.
    gpu_name
        ``unknown`` for GPUs that are not in the table; empty without GPUs.
    gpu_memory
        Bytes of one GPU (or of the part of one); ``None`` if unknown.
    price, price_low
        Price per hour with Linux, dedicated and low-priority; ``None`` if the service has none.
    types
        The service's compute types that may have this size.
    """

    name: str
    family: str = ""
    cpus: int | None = None
    memory: float | None = None
    gpus: int | None = None
    low_priority: bool = False
    price: float | None = None
    price_low: float | None = None
    currency: str = ""
    types: tuple[str, ...] = ()
    gpu_name: str = ""
    gpu_memory: float | None = None
    part: str = ""

    def cost(self, low_priority: bool) -> float | None:
        """Return the price of one machine per hour."""
        return self.price_low if low_priority else self.price

    @property
    def series(self) -> str:
        """The letters of the size's name: ``NC``, ``ND``, ``DS``."""
        match = re.match(r"(?:standard_)?([a-z]+)", self.name, re.IGNORECASE)
        return match[1].upper() if match else ""


def key(text: str) -> str:
    """Normalize a name that the service spells in several ways: sizes, families, keys of objects."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def family_key(family: str) -> str:
    """``Standard NCASv3_T4 Family``, ``StandardNCADSA100v4Family``, ``standardNCSv3Family`` -> ``ncasv3t4``, ..."""
    return key(family).removeprefix("standard").removesuffix("family")


def field(thing: Any, name: str, default: Any = None) -> Any:
    """Return `name` of a mapping or of an object of the SDK, in any spelling.

    The SDK's objects have ``memory_gb``, or since 1.35 the service's own ``memoryGB``, with the other one ``None``.
    """
    pairs = thing.items() if isinstance(thing, Mapping) else vars(thing).items()
    normalized = key(name)
    return next((value for k, value in pairs if key(str(k)) == normalized and value is not None), default)


def size_row(item: Any) -> dict[str, Any]:
    """Convert an entry of the service's list of sizes to plain data (operation `sizes.list`)."""
    prices = field(item, "estimatedVMPrices") or {}
    memory = field(item, "memoryGB")
    return {
        "name": str(field(item, "name", "")),
        "family": str(field(item, "family", "")),
        "cpus": field(item, "vCPUs"),
        "memory": None if memory is None else float(memory) * GIB,
        "gpus": field(item, "gpus"),
        "low_priority": bool(field(item, "lowPriorityCapable", False)),
        "price": _price(prices, "Standard"),
        "price_low": _price(prices, "LowPriority"),
        "currency": str(field(prices, "billingCurrency", "")) if prices else "",
        "types": [str(kind) for kind in field(item, "supportedComputeTypes") or ()],
    }


def _price(prices: Any, tier: str) -> float | None:
    """Return the price with Linux. Of two prices the higher one is mislabeled and for Windows (recorded 2025-11-04)."""
    if not prices or key(str(field(prices, "unitOfMeasure", "OneHour"))) != "onehour":
        return None
    linux_prices = [
        float(field(value, "retailPrice"))
        for value in field(prices, "values") or ()
        if key(str(field(value, "osType", ""))) == "linux"
        and key(str(field(value, "vmTier", ""))) == key(tier)
        and field(value, "retailPrice") is not None
    ]
    return min(linux_prices, default=None)


@functools.lru_cache(maxsize=1)
def gpu_table() -> Mapping[str, Any]:
    """Return the content of ``gpus.json``: ``source``, ``date``, and ``gpus`` by size."""
    table = _gpu_file()
    return {**table, "gpus": {key(name): value for name, value in table["gpus"].items()}}


def _gpu_file() -> dict[str, Any]:
    text = resources.files("jupyter_amltrain.azure").joinpath("gpus.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def sizes_of(rows: Iterable[Mapping[str, Any]]) -> tuple[Size, ...]:
    """Return the sizes in a reply of `sizes.list`, with their GPUs from the table."""
    sizes = []
    for row in rows:
        size = msgspec.convert(dict(row), Size)
        if size.gpus:
            model, memory, part = [*gpu_table()["gpus"].get(key(size.name), (UNKNOWN, None)), "", ""][:3]
            size = msgspec.structs.replace(
                size, gpu_name=model, gpu_memory=None if memory is None else memory * GIB, part=part
            )
        sizes.append(size)
    return tuple(sizes)


def gpu_sizes(family: str = "", min_gpu_memory: float = 0.0) -> list[Size]:
    """Return the sizes whose GPUs the table has, without retired ones: models and memory, no numbers and prices.

    Parameters
    ----------
    family
        Letters of the names: ``NC``.
    min_gpu_memory
        Bytes of one GPU.
    """
    sizes = [
        Size(name=name, gpu_name=model, gpu_memory=memory * GIB, part=(*part, "")[0])
        for name, (model, memory, *part) in _gpu_file()["gpus"].items()
        if not is_retired(name) and memory * GIB >= min_gpu_memory
    ]
    return [size for size in sizes if not family or size.series == family.upper()]


def find(sizes: Sequence[Size], name: str) -> Size | None:
    """Return the size with a name, in any spelling."""
    return next((size for size in sizes if key(size.name) == key(name)), None)


def offered(size: Size, kind: str) -> bool:
    """Return whether a compute of type `kind` may have the size; serverless has the sizes of clusters."""
    return not size.types or key(kind) in map(key, size.types)


def matching_sizes(
    sizes: Sequence[Size],
    *,
    gpu: bool = False,
    family: str = "",
    min_gpu_memory: float = 0.0,
    kind: str = "AmlCompute",
) -> list[Size]:
    """Return the matching sizes, those with the fewest and smallest GPUs first, then by number of cores.

    Parameters
    ----------
    family
        Letters of the names (``NC``), or the service's name of a family.
    min_gpu_memory
        Bytes of one GPU; sizes with unknown GPUs are left out.
    kind
        The service's compute type; A10 sizes are for ``MIR`` only, and so left out.

    Raises
    ------
    CommandError
        No size is in the family.
    """
    matching = [size for size in sizes if offered(size, kind)]
    if family:
        in_family = [s for s in matching if s.series == family.upper() or family_key(s.family) == family_key(family)]
        if not in_family:
            families = ", ".join(
                sorted({size.series for size in matching if size.gpus} or {size.series for size in matching})
            )
            raise CommandError(
                f"No size of family {family[:40]!r} is available here.", hint=f"Families with GPUs: {families}."
            )
        matching = in_family
    if gpu or min_gpu_memory:
        matching = [size for size in matching if size.gpus]
    if min_gpu_memory:
        matching = [size for size in matching if size.gpu_memory is not None and size.gpu_memory >= min_gpu_memory]
    return sorted(matching, key=lambda s: (s.gpus or 0, s.gpu_memory or 0.0, s.cpus or 0, s.name))


#: Page to request more quota (named in the service's own errors).
MORE_QUOTA_URL = "https://learn.microsoft.com/azure/machine-learning/how-to-manage-quotas#request-quota-increases"


#: The service's own count of machines is delayed: after a change, quotas are fetched at this interval, for this time.
QUOTA_REFRESH_INTERVAL_S = 10.0
QUOTA_FOLLOW_S = 60.0


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """Quota of one family of sizes.

    Attributes
    ----------
    family
        A family of sizes; empty for the total of cores, ``clusters`` for the number of computes.
    limit
        Cores; negative if the service sets no limit.
    name
        The service's display name.
    """

    family: str = ""
    used: int = 0
    limit: int = 0
    low_priority: bool = False
    name: str = ""

    @property
    def free(self) -> int | None:
        """Free cores; ``None`` without a limit."""
        return None if self.limit < 0 else max(0, self.limit - self.used)


def quota_row(item: Any) -> dict[str, Any]:
    """Convert an entry of the service's list of quotas to plain data (operation `quota.list`)."""
    names = field(item, "name") or {}
    value = str(field(names, "value", "")) if not isinstance(names, str) else names
    kind = key(f"{field(item, 'type', '')} {value}")
    family = "clusters" if "totalclusters" in kind else "" if key(value).startswith("total") else value
    title = str(field(names, "localizedValue", value)) if not isinstance(names, str) else names
    return {
        "family": family,
        "used": int(field(item, "currentValue", 0)),
        "limit": int(field(item, "limit", 0)),
        "low_priority": "lowpriority" in kind,
        "name": " ".join(title.split()),
    }


class Quotas:
    """All quotas of a region."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self.rows = tuple(msgspec.convert(dict(row), Quota) for row in rows)

    def binding(self, size: Size, low_priority: bool) -> tuple[Quota, ...]:
        """Return the quotas that apply to a size."""
        families = ("", family_key(size.family)) if size.family else ("",)
        return tuple(
            row
            for row in self.rows
            if row.low_priority == low_priority and row.family != "clusters" and family_key(row.family) in families
        )

    def is_known(self, size: Size, low_priority: bool) -> bool:
        """Return whether the quotas determine how many machines of a size are available.

        Dedicated machines need a quota of their family: the total alone does not show whether there are any.
        """
        return any(row.family or low_priority for row in self.binding(size, low_priority))

    def tightest(self, size: Size, low_priority: bool) -> Quota | None:
        """Return the quota with the fewest free cores; ``None`` if unknown."""
        rows = [row for row in self.binding(size, low_priority) if row.free is not None]
        return min(rows, key=lambda row: (row.free or 0, row.limit), default=None)

    def phrase(self, size: Size, low_priority: bool) -> str:
        """``12 of 24 cores``; empty if unknown."""
        row = self.tightest(size, low_priority)
        return "" if row is None else f"{row.used} of {row.limit} cores"

    def max_machines(self, size: Size, low_priority: bool = False, *, mine: int = 0, now: bool = True) -> int | None:
        """Return how many machines the quota allows; ``None`` without a limit, or if unknown.

        Parameters
        ----------
        mine
            Cores that the compute uses already.
        now
            Whether to subtract cores in use by others; else the whole quota counts.
        """
        rows = [row for row in self.binding(size, low_priority) if row.limit >= 0]
        if not rows or not size.cpus:
            return None
        cores = min(min((row.free or 0) + mine, row.limit) if now else row.limit for row in rows)
        return cores // size.cpus

    def fits(self, size: Size, nodes: int, low_priority: bool = False, *, mine: int = 0, now: bool = True) -> bool:
        """Return whether the quota allows `nodes` machines; true if unknown."""
        most = self.max_machines(size, low_priority, mine=mine, now=now)
        return most is None or nodes <= most


class QuotaClock:
    """When stored quotas are fetched again for a compute: its number of machines has changed, or is not counted yet."""

    def __init__(self) -> None:
        self._nodes: int | None = None
        self._moved_at = self._fetched_at = -math.inf  # monotonic

    def is_due(self, nodes: int | None, is_uncounted: Callable[[], bool]) -> bool:
        """Return whether to fetch them now.

        Parameters
        ----------
        nodes
            The machines of the compute.
        is_uncounted
            Whether the stored quotas count fewer cores than these have.
        """
        now, before, self._nodes = time.monotonic(), self._nodes, nodes
        if nodes != before and before is not None:
            self._moved_at = now
        elif now - self._fetched_at < QUOTA_REFRESH_INTERVAL_S or not (
            now - self._moved_at < QUOTA_FOLLOW_S or is_uncounted()
        ):
            return False
        self._fetched_at = now
        return True


def largest(
    size: Size, nodes: int, low_priority: bool, sizes: Sequence[Size], quotas: Quotas, kind: str
) -> Size | None:
    """Return the largest other size with the same GPUs (or with none) of which the quota allows `nodes` machines."""
    fitting = [
        other
        for other in sizes
        if key(other.name) != key(size.name)
        and offered(other, kind)
        and (is_retired(size.name) or not is_retired(other.name))
        and bool(other.gpus) == bool(size.gpus)
        and (not size.gpus or (other.gpu_name == size.gpu_name and other.gpu_name != UNKNOWN))
        and (other.low_priority or not low_priority)
        and (other.cpus or 0) < (size.cpus or 0)
        and quotas.max_machines(other, low_priority) is not None
        and quotas.fits(other, nodes, low_priority)
    ]
    # Prefer the same family to a larger machine of another one.
    own = [other for other in fitting if family_key(other.family) == family_key(size.family)]
    return max(own or fitting, key=lambda other: (other.gpus or 0, other.cpus or 0, other.name), default=None)


def quota_error(
    size: Size,
    nodes: int,
    quotas: Quotas,
    sizes: Sequence[Size] = (),
    *,
    low_priority: bool = False,
    kind: str = "AmlCompute",
    mine: int = 0,
    now: bool = True,
    who: str = "",
) -> QuotaExceeded | None:
    """Return the error for `nodes` machines that exceed the quota, with alternatives; ``None`` if they fit.

    Parameters
    ----------
    mine, now
        As in :meth:`Quotas.max_machines`.
    who
        Name of the target, for the message.
    """
    if quotas.fits(size, nodes, low_priority, mine=mine, now=now):
        return None
    rows = [row for row in quotas.binding(size, low_priority) if row.limit >= 0]
    row = min(rows, key=lambda row: min((row.free or 0) + mine, row.limit) if now else row.limit)
    cores, free = nodes * (size.cpus or 0), min((row.free or 0) + mine, row.limit)
    tier = "low-priority cores" if low_priority else "cores"
    scope = row.family or ("all low-priority machines" if low_priority else "all machines")
    left = (
        f"{free} of {row.limit} are free" if now else f"the quota is {row.limit} ({max(0, row.limit - row.used)} free)"
    )
    prefix = f"{who!r}: " if who else ""
    have = f"{counted(nodes, 'machine')} of {size.name} {'has' if nodes == 1 else 'have'}"
    text = f"{prefix}{have} {cores} {tier}, {left} ({scope})."
    hints = []
    if allowed := quotas.max_machines(size, low_priority, mine=mine, now=now) or 0:
        machines = f"{counted(allowed, 'machine')} of this size"
        allowed_now = quotas.max_machines(size, low_priority, mine=mine) or 0
        hints.append(
            f"{machines} would fit."
            if allowed_now >= allowed
            else f"The quota allows {machines}, {allowed_now or 'none'} of them now."
        )
    alternative = largest(size, nodes, low_priority, sizes, quotas, kind)
    if alternative is not None:
        gpus = f"{alternative.gpus} x {alternative.gpu_name}" if alternative.gpus else f"{alternative.cpus} cores"
        hints.append(f"The largest that fits {'' if nodes == 1 else f'{nodes} times '}is {alternative.name} ({gpus}).")
    return QuotaExceeded(text, hint=" ".join([*hints, f"More quota: {MORE_QUOTA_URL}"]))


#: Time before a size's retirement from which on there is a warning.
RETIREMENT_NOTICE = datetime.timedelta(days=365)


@functools.lru_cache(maxsize=1)
def _series() -> tuple[tuple[re.Pattern[str], datetime.date], ...]:
    text = resources.files("jupyter_amltrain.azure").joinpath("retired.json").read_text(encoding="utf-8")
    return tuple(
        (re.compile(pattern), datetime.date.fromisoformat(day)) for pattern, day in json.loads(text)["series"].values()
    )


@functools.lru_cache(maxsize=4096)
def retirement_date(size: str) -> datetime.date | None:
    """Return the date on which Azure retires a size; ``None`` if none is announced."""
    name = size.strip().lower()
    name = name if name.startswith(("standard_", "basic_")) else f"standard_{name}"
    return next((day for pattern, day in _series() if pattern.fullmatch(name)), None)


def is_retired(size: str, today: datetime.date | None = None) -> bool:
    """Return whether a size is retired."""
    day = retirement_date(size)
    return day is not None and day <= (today or datetime.date.today())


def retirement_text(size: str, today: datetime.date | None = None) -> str:
    """``retired 2025-09-30``, ``until 2027-03-31`` within :data:`RETIREMENT_NOTICE`; else empty."""
    day, now = retirement_date(size), today or datetime.date.today()
    if day is None or day > now + RETIREMENT_NOTICE:
        return ""
    return f"retired {day}" if day <= now else f"until {day}"


def retirement_warning(size: str, today: datetime.date | None = None) -> str:
    """Return a warning for the user about a size's retirement; empty if there is none."""
    text = retirement_text(size, today)
    if not text:
        return ""
    day = retirement_date(size)
    if text.startswith("retired"):
        return f"Warning: Azure retired {size} on {day}, and may reject the size or stop its machines."
    return f"Warning: Azure retires {size} on {day}, and stops its machines then."


def region_file(root: Path, what: str, subscription: str, region: str) -> Path:
    """Return the file with the ``sizes`` or ``quota`` of a region, below the state root."""
    name = "-".join(re.sub(r"[^a-z0-9]+", "", part.lower()) for part in (what, region, subscription))
    return root / "azure" / ".kept" / f"{name}.json"


def drop_quotas(root: Path, subscription: str) -> None:
    """Delete the stored quotas of a subscription after a change to its computes."""
    end = f"-{re.sub(r'[^a-z0-9]+', '', subscription.lower())}.json"
    for file in (root / "azure" / ".kept").glob("quota-*.json"):
        if file.name.endswith(end):
            with contextlib.suppress(OSError):
                file.unlink()


def read_region_rows(file: Path) -> tuple[list[dict[str, Any]], float] | None:
    """Return the rows and the time of their request (Unix seconds); ``None`` if there are none."""
    try:
        found = file.stat()
        return _read_region_rows(file, found.st_mtime_ns, found.st_size)
    except (OSError, ValueError, KeyError, TypeError):
        return None


@functools.lru_cache(maxsize=16)
def _read_region_rows(file: Path, changed: int, size: int) -> tuple[list[dict[str, Any]], float]:
    value = json.loads(file.read_text(encoding="utf-8"))
    return list(value["rows"]), float(value["at"])
