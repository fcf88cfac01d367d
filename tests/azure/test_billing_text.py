from __future__ import annotations

from typing import Any

from jupyter_amltrain.azure.commands.sizes import billing_text


def row(name: str, price: float | None) -> dict[str, Any]:
    return {
        "name": name, "kind": "instance", "nodes": 1, "keeps": 0, "size": "S", "low_priority": False,
        "price": price, "currency": "USD" if price is not None else "",
    }  # fmt: skip


def test_billing_sum_with_unknown_prices_is_lower_bound() -> None:
    text = billing_text({"lab": [row("a", 1.5), row("b", None), row("c", None)]})
    assert "at least 1.50 USD" in text and "2 of 3" in text


def test_billing_sum_of_known_prices_is_exact() -> None:
    text = billing_text({"lab": [row("a", 1.5), row("b", 2.0)]})
    assert "3.50 USD" in text and "at least" not in text and "unknown" not in text


def test_billing_sum_of_unknown_prices_shows_no_amount() -> None:
    text = billing_text({"lab": [row("a", None), row("b", None)]})
    assert "0.00" not in text and "unknown" in text.splitlines()[-1]
