"""Machine sizes, their GPUs and prices. Pure: reads what the service says and what the project knows.

The model and memory of a size's GPUs are in ``gpus.json`` (with source and date): the service tells only
how many there are. Everything else is the service's.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

import msgspec

from jupyter_amltrain.errors import CommandError

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
