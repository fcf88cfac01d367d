"""What a page hears from its kernels: the frames of its websockets, read."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Page, WebSocket


@dataclass(frozen=True)
class Frame:
    """One message from a kernel; `at` is monotonic seconds, `size` its bytes."""

    at: float
    size: int
    kind: str
    content: dict[str, Any]

    @property
    def event(self) -> str:
        """Type of our panel's event; empty for anything else."""
        data = self.content.get("data")
        found = data.get("type", "") if self.kind == "comm_msg" and isinstance(data, dict) and "seq" in data else ""
        return str(found)


def frame_of(payload: bytes) -> Frame | None:
    """A message of the protocol ``v1.kernel.websocket.jupyter.org``."""
    count = int.from_bytes(payload[:8], "little")
    offsets = [int.from_bytes(payload[8 * (i + 1) : 8 * (i + 2)], "little") for i in range(count)]
    parts = [payload[a:b] for a, b in zip(offsets, offsets[1:], strict=False)]
    if len(parts) < 5:
        return None
    header, content = json.loads(parts[1]), json.loads(parts[4])
    return Frame(time.monotonic(), len(payload), header["msg_type"], content)


@dataclass
class Traffic:
    """Everything that came since the last :meth:`clear`; made before the page loads its notebook."""

    frames: list[Frame] = field(default_factory=list)

    def listen(self, page: Page) -> Traffic:
        """Begin to hear what `page` hears."""

        def opened(socket: WebSocket) -> None:
            if "/channels" in socket.url:
                socket.on("framereceived", self._take)

        page.on("websocket", opened)
        return self

    def _take(self, payload: str | bytes) -> None:
        frame = frame_of(payload) if isinstance(payload, bytes) else None
        if frame is not None:
            self.frames.append(frame)

    def clear(self) -> None:
        """Forget what came."""
        self.frames.clear()

    def events(self, *kinds: str) -> list[Frame]:
        """Our panel's events, of the given types or all."""
        return [f for f in self.frames if f.event and (not kinds or f.event in kinds)]
