"""What a page sees of a kernel: every message on iopub with its size and time, and our control requests."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import zmq

from benchmarks.kernels import Kernel
from jupyter_amltrain.frontend import protocol

DELIMITER = b"<IDS|MSG>"


@dataclass
class Message:
    """One message; `at` is unix seconds of its arrival, `size` the bytes of all its frames."""

    at: float
    size: int
    kind: str
    content: dict[str, Any]
    buffers: list[bytes]

    @property
    def comm(self) -> str:
        return str(self.content.get("comm_id", ""))

    @property
    def inner(self) -> dict[str, Any]:
        """Content of a widget's custom message; empty for anything else."""
        data = self.content.get("data")
        return dict(data.get("content") or {}) if isinstance(data, dict) and data.get("method") == "custom" else {}

    @property
    def model(self) -> str:
        """Name of the widget model that this message opens."""
        state = (self.content.get("data") or {}).get("state") if self.kind == "comm_open" else None
        return str((state or {}).get("_model_name", ""))


class Page:
    """Listens to a kernel by a socket of its own."""

    def __init__(self, kernel: Kernel) -> None:
        self._client = kernel.client
        self._socket = kernel.manager.connect_iopub()
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self.feed = ""  #: comm of the feed, once it has come

    def collect(self, seconds: float, until: Any = None) -> list[Message]:
        """Messages of the next `seconds`, or up to the first of which `until` is true."""
        found = []
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not self._socket.poll(max(1, left * 1000)):
                continue
            frames = self._socket.recv_multipart()
            at = time.time()
            head = frames.index(DELIMITER)
            header, content = json.loads(frames[head + 2]), json.loads(frames[head + 5])
            message = Message(at, sum(map(len, frames)), header["msg_type"], content, frames[head + 6 :])
            if message.model == "StreamFeedModel":
                self.feed = message.comm
            found.append(message)
            if until is not None and until(message):
                break
        return found

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """One request on the control channel, and its answer."""
        message = self._client.session.msg("amltrain_request", {"version": protocol.VERSION, "op": op, **fields})
        self._client.control_channel.send(message)
        while True:
            reply = self._client.control_channel.get_msg(timeout=60)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return dict(reply["content"])

    def open(self, handle: str) -> str:
        """Ask for a dashboard as our renderer does; the feed's id."""
        while True:
            reply = self.ask("dashboard", handle=handle, page="bench")
            if reply.get("feed"):
                return str(reply["feed"])
            if reply.get("reason") or not reply.get("ok"):
                raise RuntimeError(str(reply))
            time.sleep(0.05)

    def is_tick(self, message: Message) -> bool:
        """Whether a message brings ticks of the feed."""
        return message.comm == self.feed != "" and "n" in message.inner
