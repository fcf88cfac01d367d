"""What code was sent to a workspace: of it the next upload copies what has not changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_amltrain.backends.azureml.service.code_tree import Content, Packed
from jupyter_amltrain.errors import AmlTrainError, StateError
from jupyter_amltrain.state import locked, read_json, write_json

log = logging.getLogger("amltrain.azure")

#: Of earlier assets so many are remembered.
_LATEST = 12
#: Copying on the service's side, in one answer, is for files up to 256 MiB (``Copy Blob From URL``).
_COPY_LIMIT = 256 << 20


class Sent:
    """What was sent to a workspace, in a small file of the state root: no signature is in it."""

    def __init__(self, root: Path, workspace: str) -> None:
        self._folder = root / "azure" / workspace
        self._file = self._folder / "sent.json"
        self.assets: list[dict[str, Any]] = []
        try:
            if self._file.exists():
                self.assets = list(read_json(self._file).get("assets") or [])
        except (StateError, OSError, ValueError) as error:
            log.info("%s", error)

    def where(self, blob: str, content: Content) -> str:
        """Address of the same content under the same name in an earlier asset; empty for none."""
        if content.size > _COPY_LIMIT:
            return ""
        for asset in self.assets:
            if (asset.get("blobs") or {}).get(blob, ("", ""))[1] == content.sha256:
                return f"{asset['uri']}/{blob}"
        return ""

    def table(self, base: str) -> dict[str, str]:
        """Files of a base pack; empty when that is not known, and then nothing is an edit of it."""
        path = self._folder / f"{base.rpartition('/')[2]}.json"
        try:
            return dict(read_json(path).get("files") or {}) if path.exists() else {}
        except (StateError, OSError, ValueError):
            return {}

    def remember(self, uri: str, asset: str, packed: Packed) -> None:
        """Note an asset; a state root that cannot be written costs only the next upload."""
        blobs = {name: [content.size, content.sha256] for name, content in packed.blobs.items()}
        row = {"id": asset, "uri": uri, "time": time.time(), "base": packed.base, "blobs": blobs}

        def change() -> None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self._folder / "sent.lock", 10.0):
                kept = Sent(self._folder.parent.parent, self._folder.name).assets
                if packed.base:
                    name = packed.base.rpartition("/")[2]
                    write_json(self._folder / f"{name}.json", {"schema": 1, "files": packed.table})
                write_json(self._file, {"schema": 1, "assets": [row, *kept][:_LATEST]})

        _quietly(change)


def _quietly(act: Callable[[], None]) -> None:
    try:
        act()
    except (OSError, AmlTrainError) as error:
        log.warning("%s", error)
