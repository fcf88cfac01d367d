"""How often a growing log is looked at."""

from __future__ import annotations

import pytest

from jupyter_amltrain.azure.polling import LOG_POLL_FACTOR, MIN_LOG_POLL_INTERVAL_S, LogPollInterval


@pytest.mark.parametrize("poll", [0.05, 1.0, 10.0])
def test_log_poll_interval_grows_without_lines(monkeypatch: pytest.MonkeyPatch, poll: float) -> None:
    monkeypatch.setenv("AMLTRAIN_AZURE_POLL", str(poll))
    log = LogPollInterval()
    assert log.due() == 0.0
    log.record_poll(False)
    assert log.pause == pytest.approx(poll) and 0 <= log.due() <= poll
    log.record_poll(True)
    quick = min(poll, max(MIN_LOG_POLL_INTERVAL_S, LOG_POLL_FACTOR * poll))
    assert log.pause == pytest.approx(quick)
    for _ in range(10):
        log.record_poll(False)
    assert log.pause == pytest.approx(quick)  # a pause between two lines is no reason
    log.record_poll(True, took=0.4 * poll)  # of a job of many processes
    assert log.due() > 0.7 * poll
    for _ in range(70):
        log.record_poll(False)
    assert log.pause == pytest.approx(poll)
    log.record_poll(True)
    assert log.pause == pytest.approx(quick)
