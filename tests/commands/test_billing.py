from __future__ import annotations

from typing import Any

from jupyter_amltrain.commands.azure_billing import text_of


def row(name: str, price: float | None) -> dict[str, Any]:
    return {
        "name": name, "kind": "instance", "nodes": 1, "keeps": 0, "size": "S", "low_priority": False,
        "price": price, "currency": "USD" if price is not None else "",
    }  # fmt: skip


def test_sum_with_unknown_prices_says_at_least_and_how_many() -> None:
    text = text_of({"lab": [row("a", 1.5), row("b", None), row("c", None)]})
    assert "at least 1.50 USD" in text and "2 of 3" in text


def test_sum_of_known_prices_is_exact() -> None:
    text = text_of({"lab": [row("a", 1.5), row("b", 2.0)]})
    assert "3.50 USD" in text and "at least" not in text and "unknown" not in text


def test_sum_of_unknown_prices_is_no_amount() -> None:
    text = text_of({"lab": [row("a", None), row("b", None)]})
    assert "0.00" not in text and "unknown" in text.splitlines()[-1]
