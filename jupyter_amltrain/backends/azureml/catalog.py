"""Machine sizes with their GPUs, prices, retirement and quotas. No I/O but of the files that the service process keeps.

The model and memory of a size's GPUs are in ``gpus.json`` (with source and date): the service says only
how many there are. Retired sizes are in ``retired.json``. Everything else is the service's.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.errors import CommandError, QuotaExceeded

UNKNOWN = "unknown"
GIB = 1 << 30


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of machine.

    Attributes
    ----------
    memory
        Bytes of main memory.
    gpus
        Whole cards as the service counts them; `part` is less than one where the size has a part of a card.
    gpu_name
        ``unknown`` for GPUs that the table does not have; empty without GPUs.
    gpu_memory
        Bytes of one GPU (of the part of one); ``None`` where that is unknown.
    price, price_low
        Of an hour with Linux, dedicated and low-priority; ``None`` where the service names none.
    types
        The service's words for the computes that may have this size.
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
        """Of one machine and hour."""
        return self.price_low if low_priority else self.price

    @property
    def series(self) -> str:
        """The letters of its name: ``NC``, ``ND``, ``DS``."""
        found = re.match(r"(?:standard_)?([a-z]+)", self.name, re.IGNORECASE)
        return found[1].upper() if found else ""


def key(text: str) -> str:
    """One spelling for names that the service writes in several ways: sizes, families, keys of objects."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def family_key(family: str) -> str:
    """``Standard NCASv3_T4 Family``, ``StandardNCADSA100v4Family``, ``standardNCSv3Family`` -> ``ncasv3t4``, ..."""
    return key(family).removeprefix("standard").removesuffix("family")


def field(thing: Any, name: str, default: Any = None) -> Any:
    """`name` of a mapping or of an object of the SDK, in whatever style it is written.

    The SDK's objects have ``memory_gb``, or since 1.35 the service's own ``memoryGB``, with the other one ``None``.
    """
    pairs = thing.items() if isinstance(thing, Mapping) else vars(thing).items()
    wanted = key(name)
    return next((value for k, value in pairs if key(str(k)) == wanted and value is not None), default)


def size_row(item: Any) -> dict[str, Any]:
    """An entry of the service's list as plain data (`sizes.list` of the process)."""
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
    """Of Linux. Where there are two, the dearer one is Windows' under the wrong name (recorded 2025-11-04)."""
    if not prices or key(str(field(prices, "unitOfMeasure", "OneHour"))) != "onehour":
        return None
    found = [
        float(field(value, "retailPrice"))
        for value in field(prices, "values") or ()
        if key(str(field(value, "osType", ""))) == "linux"
        and key(str(field(value, "vmTier", ""))) == key(tier)
        and field(value, "retailPrice") is not None
    ]
    return min(found, default=None)


@functools.lru_cache(maxsize=1)
def gpu_table() -> Mapping[str, Any]:
    """The project's table: ``source``, ``date``, and ``gpus`` by size."""
    text = resources.files("jupyter_amltrain.backends.azureml").joinpath("gpus.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    found["gpus"] = {key(name): value for name, value in found["gpus"].items()}
    return found


def sizes_of(rows: Iterable[Mapping[str, Any]]) -> tuple[Size, ...]:
    """The answer of `sizes.list`, with what the project knows of the GPUs."""
    found = []
    for row in rows:
        size = msgspec.convert(dict(row), Size)
        if size.gpus:
            model, memory, part = [*gpu_table()["gpus"].get(key(size.name), (UNKNOWN, None)), "", ""][:3]
            size = msgspec.structs.replace(
                size, gpu_name=model, gpu_memory=None if memory is None else memory * GIB, part=part
            )
        found.append(size)
    return tuple(found)


def find(sizes: Sequence[Size], name: str) -> Size | None:
    """The size of that name, in any spelling."""
    return next((size for size in sizes if key(size.name) == key(name)), None)


def offered(size: Size, kind: str) -> bool:
    """Whether a compute of `kind` (the service's word) may have the size; serverless has those of clusters."""
    return not size.types or key(kind) in map(key, size.types)


def choose(
    sizes: Sequence[Size],
    *,
    gpu: bool = False,
    family: str = "",
    min_gpu_memory: float = 0.0,
    kind: str = "AmlCompute",
) -> list[Size]:
    """Those that are wanted, the fewest and smallest GPUs first, then by processors.

    Parameters
    ----------
    family
        Letters of the names (``NC``), or a family as the service calls it.
    min_gpu_memory
        Bytes of one GPU; sizes whose GPUs are unknown are left out.
    kind
        What is to have the size, in the service's words; A10 sizes are for ``MIR`` only, and so left out.

    Raises
    ------
    CommandError
        There is no such family.
    """
    found = [size for size in sizes if offered(size, kind)]
    if family:
        mine = [s for s in found if s.series == family.upper() or family_key(s.family) == family_key(family)]
        if not mine:
            there = ", ".join(sorted({size.series for size in found if size.gpus} or {size.series for size in found}))
            raise CommandError(
                f"No size of family {family[:40]!r} can be had here.", hint=f"With GPUs there are: {there}."
            )
        found = mine
    if gpu or min_gpu_memory:
        found = [size for size in found if size.gpus]
    if min_gpu_memory:
        found = [size for size in found if size.gpu_memory is not None and size.gpu_memory >= min_gpu_memory]
    return sorted(found, key=lambda s: (s.gpus or 0, s.gpu_memory or 0.0, s.cpus or 0, s.name))


#: Where more is asked for (named in the service's own refusals).
MORE = "https://learn.microsoft.com/azure/machine-learning/how-to-manage-quotas#request-quota-increases"


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the service.

    Attributes
    ----------
    family
        A family of sizes; empty for all cores together, ``clusters`` for the number of computes.
    limit
        Cores; negative where the service sets none.
    name
        What the service calls it for people.
    """

    family: str = ""
    used: int = 0
    limit: int = 0
    low_priority: bool = False
    name: str = ""

    @property
    def free(self) -> int | None:
        """Cores; ``None`` for any number."""
        return None if self.limit < 0 else max(0, self.limit - self.used)


def quota_row(item: Any) -> dict[str, Any]:
    """An entry of the service's list as plain data (`quota.list` of the process)."""
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
    """All rows of a region."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self.rows = tuple(msgspec.convert(dict(row), Quota) for row in rows)

    def binding(self, size: Size, low_priority: bool) -> tuple[Quota, ...]:
        """The rows that hold for a size."""
        families = ("", family_key(size.family)) if size.family else ("",)
        return tuple(
            row
            for row in self.rows
            if row.low_priority == low_priority and row.family != "clusters" and family_key(row.family) in families
        )

    def is_known(self, size: Size, low_priority: bool) -> bool:
        """Return whether the rows say how many machines of a size can be had.

        Dedicated machines need a row of their family: the total alone leaves open whether there are any.
        """
        return any(row.family or low_priority for row in self.binding(size, low_priority))

    def tightest(self, size: Size, low_priority: bool) -> Quota | None:
        """The row with the fewest free cores; ``None`` where nothing is known."""
        rows = [row for row in self.binding(size, low_priority) if row.free is not None]
        return min(rows, key=lambda row: (row.free or 0, row.limit), default=None)

    def phrase(self, size: Size, low_priority: bool) -> str:
        """``12 of 24 cores``; empty where nothing is known."""
        row = self.tightest(size, low_priority)
        return "" if row is None else f"{row.used} of {row.limit} cores"

    def most(self, size: Size, low_priority: bool = False, *, mine: int = 0, now: bool = True) -> int | None:
        """How many machines fit; ``None`` for any number, or where it is unknown.

        Parameters
        ----------
        mine
            Cores that are used already for what is asked.
        now
            Beside what others use now; else whether it could ever be.
        """
        rows = [row for row in self.binding(size, low_priority) if row.limit >= 0]
        if not rows or not size.cpus:
            return None
        cores = min(min((row.free or 0) + mine, row.limit) if now else row.limit for row in rows)
        return cores // size.cpus

    def fits(self, size: Size, nodes: int, low_priority: bool = False, *, mine: int = 0, now: bool = True) -> bool:
        """Whether `nodes` machines can be had; true where nothing is known."""
        most = self.most(size, low_priority, mine=mine, now=now)
        return most is None or nodes <= most


def largest(
    size: Size, nodes: int, low_priority: bool, sizes: Sequence[Size], quotas: Quotas, kind: str
) -> Size | None:
    """The largest other size with the same GPUs (for one without: of processors only) that fits `nodes` times."""
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
        and quotas.most(other, low_priority) is not None
        and quotas.fits(other, nodes, low_priority)
    ]
    # Of processors, the family at hand is nearer than a larger machine of another.
    own = [other for other in fitting if family_key(other.family) == family_key(size.family)]
    return max(own or fitting, key=lambda other: (other.gpus or 0, other.cpus or 0, other.name), default=None)


def refusal(
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
    """Why `nodes` machines cannot be had, with what could; ``None`` when they can.

    Parameters
    ----------
    mine, now
        As :meth:`Quotas.most` takes them.
    who
        The target, for the sentence.
    """
    if quotas.fits(size, nodes, low_priority, mine=mine, now=now):
        return None
    rows = [row for row in quotas.binding(size, low_priority) if row.limit >= 0]
    row = min(rows, key=lambda row: min((row.free or 0) + mine, row.limit) if now else row.limit)
    cores, free = nodes * (size.cpus or 0), min((row.free or 0) + mine, row.limit)
    tier = "low-priority cores" if low_priority else "cores"
    what = row.family or ("all low-priority machines" if low_priority else "all machines")
    left = (
        f"{free} of {row.limit} are free" if now else f"the quota is {row.limit} ({max(0, row.limit - row.used)} free)"
    )
    prefix = f"{who!r}: " if who else ""
    machines = f"{nodes} machine{'' if nodes == 1 else 's'} of {size.name}"
    text = f"{prefix}{machines} {'has' if nodes == 1 else 'have'} {cores} {tier}, {left} ({what})."
    most = quotas.most(size, low_priority, mine=mine, now=now) or 0
    hints = []
    if most:
        machines, at_once = f"{most} machine{'' if most == 1 else 's'}", quotas.most(size, low_priority, mine=mine) or 0
        hints.append(
            f"{machines} of this size would fit."
            if at_once >= most
            else f"The quota allows {machines} of this size, {at_once or 'none'} of them now."
        )
    other = largest(size, nodes, low_priority, sizes, quotas, kind)
    if other is not None:
        gpus = f"{other.gpus} x {other.gpu_name}" if other.gpus else f"{other.cpus} cores"
        hints.append(f"The largest that fits {'' if nodes == 1 else f'{nodes} times '}is {other.name} ({gpus}).")
    return QuotaExceeded(text, hint=" ".join([*hints, f"More quota: {MORE}"]))


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


def region_file(root: Path, what: str, subscription: str, region: str) -> Path:
    """The file of ``sizes`` or ``quota`` of a region, below the state root."""
    name = "-".join(re.sub(r"[^a-z0-9]+", "", part.lower()) for part in (what, region, subscription))
    return root / "azure" / ".kept" / f"{name}.json"


def drop_quotas(root: Path, subscription: str) -> None:
    """Forget the quotas of a subscription: something has just been changed there."""
    end = f"-{re.sub(r'[^a-z0-9]+', '', subscription.lower())}.json"
    for file in (root / "azure" / ".kept").glob("quota-*.json"):
        if file.name.endswith(end):
            with contextlib.suppress(OSError):
                file.unlink()


def read_region_rows(file: Path) -> tuple[list[dict[str, Any]], float] | None:
    """The rows and when they were asked for (Unix seconds); ``None`` when there are none."""
    try:
        found = file.stat()
        return _read_region_rows(file, found.st_mtime_ns, found.st_size)
    except (OSError, ValueError, KeyError, TypeError):
        return None


@functools.lru_cache(maxsize=16)
def _read_region_rows(file: Path, changed: int, size: int) -> tuple[list[dict[str, Any]], float]:
    value = json.loads(file.read_text(encoding="utf-8"))
    return list(value["rows"]), float(value["at"])
