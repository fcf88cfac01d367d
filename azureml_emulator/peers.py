"""Who is at the other end of a connection: only the owner of the emulator (and root) may be."""

from __future__ import annotations

import asyncio
from typing import Any

from jupyter_amltrain.agent.tcp_owner import is_other_user


def is_foreign(transport: asyncio.BaseTransport | None) -> bool:
    """Whether another user of this machine holds the other end, as far as the system tells."""
    connection: Any = transport.get_extra_info("socket") if transport is not None else None
    return connection is not None and is_other_user(connection)
