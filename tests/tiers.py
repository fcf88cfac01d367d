"""Parameters that only the thorough tiers run (``make test-ui``, ``make test-azure``, ``make test-trust``)."""

from __future__ import annotations

from typing import Any

import pytest


def thorough(*values: Any) -> list[Any]:
    """Return the values as parameters marked `thorough`; a tuple holds the values of several arguments."""
    mark = pytest.mark.thorough
    return [pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=mark) for value in values]
