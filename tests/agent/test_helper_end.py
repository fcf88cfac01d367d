"""The end of a helper that has just started."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from jupyter_amltrain.agent.supervise.helpers import Helper, stop_helper

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks")


class Stop(BaseException):
    """SIGTERM arrived."""


def test_helper_that_is_ended_while_it_starts_does_what_it_does_at_its_end(tmp_path: Path) -> None:
    def body() -> int:
        time.sleep(0.3)  # imports

        def stop(number: int, frame: object) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise Stop

        signal.signal(signal.SIGTERM, stop)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
            time.sleep(60)
        except Stop:
            (tmp_path / "ended").touch()
        return 0

    helper = Helper("sink")
    helper.fork(str(tmp_path), body, holds_sigterm=True)
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    stop_helper(helper.pid, 30.0)
    assert (tmp_path / "ended").exists()
