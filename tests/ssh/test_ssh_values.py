from __future__ import annotations

from typing import Any

from tools.openssh import Sshd

from ..contracts.notebook_values import check_round_trip
from .test_ssh_runs import attach


def test_every_value_comes_back(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    check_round_trip("box", 180)
