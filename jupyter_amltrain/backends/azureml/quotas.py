"""How many processor cores may still be had. Pure.

The service counts vCPUs: of each family of dedicated machines, of all dedicated machines together, and of
all low-priority machines together. A family without a row is not known: nothing is refused for it and nothing
promised (:meth:`Quotas.is_known`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from jupyter_amltrain.backends.azureml.catalog import UNKNOWN, Size, family_key, field, key, offered
from jupyter_amltrain.backends.azureml.retirement import is_retired
from jupyter_amltrain.errors import QuotaExceeded

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
