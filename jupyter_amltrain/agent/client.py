"""One connection to the dispatcher: a JSON line in, a JSON line out."""

from __future__ import annotations

import json
import socket
from typing import Any, Dict

from . import clock

#: A request with a large environment; more is a mistake.
MAX_REQUEST_BYTES = 16 << 20
#: Seconds that a client gets to send its line.
REQUEST_TIMEOUT_S = 20.0


class Client:
    """A connection with its request so far."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.data = bytearray()
        self.until = clock.mono() + REQUEST_TIMEOUT_S

    def answer(self, value: Dict[str, Any]) -> None:
        """Send the answer and close."""
        try:
            self.connection.settimeout(2.0)
            self.connection.sendall(json.dumps(value).encode() + b"\n")
        except OSError:
            pass
        self.connection.close()
