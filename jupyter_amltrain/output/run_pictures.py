"""Pictures of a run as Python objects, each displayed by a cell whose last expression it is."""

from __future__ import annotations

import base64
from typing import Any

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.kernel.session import controller
from jupyter_amltrain.schema.record import RunPicture
from jupyter_amltrain.schema.run import RunHandle
from jupyter_amltrain.tracking.thumbnails import media_type

#: Seconds to wait for the file of a picture.
READ_TIMEOUT_S = 60.0


class PictureFile:
    """A figure that a run's script has shown, or an image that it has logged.

    Attributes
    ----------
    name
        The file's name, or key and step of ``mlflow.log_image``.
    path
        Path in the run's folder.
    kind
        ``figure`` or ``artifact``.
    size
        Bytes.
    time
        Unix seconds of its last change.
    """

    def __init__(self, handle: RunHandle, picture: RunPicture) -> None:
        self._handle = handle
        self.name, self.path, self.kind = picture.name, picture.path, picture.kind
        self.size, self.time = picture.bytes, picture.time

    def read(self) -> bytes:
        """Return the file's content.

        Raises
        ------
        CommandError
            It is no image, is over 16 MiB, or was deleted.
        """
        data = controller().loop.call(controller().contents.read_picture(self._handle, self.path), READ_TIMEOUT_S)
        if not data:
            raise CommandError(
                f"Cannot read {self.path} of {self._handle}: it is no image, is over 16 MiB, or was deleted.",
                hint=f"Look into the run's folder: %aml_runs show {self._handle}",
            )
        return data

    def _repr_png_(self) -> bytes | None:
        data = self.read()
        return data if media_type(data) == "image/png" else None

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        data = self.read()
        kind = media_type(data)
        is_text = kind == "image/svg+xml"
        shown = data.decode("utf-8", "replace") if is_text else base64.b64encode(data).decode()
        return {kind: shown, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"<PictureFile {self.name} of {self._handle}>"
