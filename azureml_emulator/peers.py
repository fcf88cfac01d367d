"""Peer checks: only the owner of the emulator (and root) may connect."""

from __future__ import annotations

import asyncio
from typing import Any

from jupyter_amltrain.agent.tcp_owner import is_other_user


def is_foreign(transport: asyncio.BaseTransport | None) -> bool:
    """Return whether the peer is another user of this machine, if the system can tell."""
    connection: Any = transport.get_extra_info("socket") if transport is not None else None
    return connection is not None and is_other_user(connection)
