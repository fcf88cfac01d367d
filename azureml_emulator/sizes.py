"""VM sizes: the recorded answer of 2025-11 for eastus, all entries of the excerpt."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from azureml_emulator import arm
from azureml_emulator.routing import Call, Routes

routes = Routes()
DATA = Path(__file__).resolve().parent / "data"


@lru_cache
def recorded() -> tuple[dict[str, Any], ...]:
    """Entries of recordings/05_vmSizes_eastus.json, as Azure wrote them."""
    found = json.loads((DATA / "recordings" / "05_vmSizes_eastus.json").read_text(encoding="utf-8"))
    return tuple(found["entries"][0]["response"]["value"])


def find(name: str) -> dict[str, Any] | None:
    """The size with this name, without regard to case (Azure answers ``STANDARD_DS2_V2`` for ``Standard_DS2_v2``)."""
    return next((size for size in recorded() if size["name"].lower() == name.lower()), None)


def family_key(family: str) -> str:
    """One key for the three spellings of a family: ``Standard NCASv3_T4 Family`` -> ``standardncasv3t4family``."""
    return "".join(letter for letter in family.lower() if letter.isalnum())


@routes.arm(
    "GET", "/subscriptions/{subscription}/providers/Microsoft.MachineLearningServices/locations/{location}/vmSizes"
)
async def vm_sizes(call: Call) -> Any:
    """Every size at once; recorded Azure sends no nextLink here."""
    if call.params["location"].lower() != call.world.location:
        return arm.no_such_region(call, "vmSizes")
    value = [dict(size) for size in recorded()]
    if not call.world.switches["prices"]:
        for size in value:
            size.pop("estimatedVMPrices", None)
    return {"value": value}
