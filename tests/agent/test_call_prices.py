from __future__ import annotations

import pytest

from jupyter_amltrain.agent.telemetry import call_prices
from jupyter_amltrain.agent.telemetry.call_prices import DEAR_S, MEASURED_CALLS, CallPrices


@pytest.mark.parametrize(
    ("seconds", "dear"),
    [([2 * DEAR_S] * 3, True), ([DEAR_S / 2] * 3, False), ([100 * DEAR_S, 0.0, 0.0], False), ([2 * DEAR_S] * 2, False)],
)
def test_median_of_the_first_calls_decides(monkeypatch: pytest.MonkeyPatch, seconds: list[float], dear: bool) -> None:
    now, prices = 0.0, CallPrices()
    monkeypatch.setattr(call_prices.time, "thread_time", lambda: now)

    def call(price: float) -> str:
        nonlocal now
        now += price
        return "answer"

    for price in seconds:
        assert prices.timed("f", lambda price=price: call(price)) == "answer"  # type: ignore[misc]
    assert prices.is_dear("f") is dear and not prices.is_dear("g")
    if len(seconds) == MEASURED_CALLS:
        for _ in range(5):  # later calls change nothing
            prices.timed("f", lambda: call(0.0 if dear else 1.0))
        assert prices.is_dear("f") is dear
