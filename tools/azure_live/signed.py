"""Signed addresses: for how long they hold."""

from __future__ import annotations

import time
from urllib.parse import parse_qs, urlsplit

from jupyter_amltrain.azure.service import history


def seconds_left(url: str) -> float | None:
    """Until the signature of an address ends; ``None`` where it does not say so."""
    end = history.unix((parse_qs(urlsplit(url).query).get("se") or [""])[0])
    return None if end is None else round(end - time.time())
