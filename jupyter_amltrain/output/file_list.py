"""``FileList``: the files that ``run.files()`` returns, a list that shows itself as a table."""

from __future__ import annotations

import datetime
import html
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.file_copy import FileCopy
from jupyter_amltrain.backends.transfer import PartSize, Transfer
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.kernel.result_files import read_result
from jupyter_amltrain.kernel.session import controller
from jupyter_amltrain.output.progress_line import ProgressLine
from jupyter_amltrain.schema.run import RunHandle
from jupyter_amltrain.schema.run_file import RunFile
from jupyter_amltrain.text import ago, bytes_text, table

if TYPE_CHECKING:
    import pandas


class ResultFile:
    """A file that a run's script has written.

    Attributes
    ----------
    path
        Path in the run's folder, e.g. ``outputs/model.joblib``.
    size
        Bytes when the files were listed.
    modified
        Unix seconds of its last change.
    """

    def __init__(self, handle: RunHandle, file: RunFile) -> None:
        self._handle = handle
        self.path, self.size, self.modified = file.path, file.size, file.modified

    def read(self) -> bytes:
        """Return the whole content."""
        return b"".join(self._blocks(0))

    def save(self, to: str | os.PathLike[str] = ".") -> Path:
        """Copy the file to a folder or to a new file, and return its path.

        An interrupted copy continues where it ended, when it is repeated.

        Raises
        ------
        CommandError
            A file with this name exists.
        """
        path = Path(to)
        path = path / Path(self.path).name if path.is_dir() else path
        if os.path.lexists(path):
            raise CommandError(f"{path} already exists.", hint="Name another file: save('copy-of-it')")
        copy = FileCopy(path, self.size, self.modified)
        for block in self._blocks(copy.begin()):
            copy.append(block)
        copy.complete()
        return path

    def _blocks(self, offset: int) -> Iterator[bytes]:
        """Yield the content from byte `offset`, with a line of progress if it takes longer than a second."""
        own, part, transfer = controller(), PartSize(), Transfer("copying", self.size, offset)

        async def get() -> bytes:
            run = await own.load(self._handle)
            return await read_result(own.backend(run.target), run, self.path, offset, part.bytes)

        with ProgressLine() as line:
            while True:
                begin = time.monotonic()
                block = own.loop.call(get(), None)
                part.took(len(block), time.monotonic() - begin)
                if not block:
                    return
                yield block
                offset += len(block)
                transfer.advance(len(block))
                line.show(transfer.text and f"{self.path}: {transfer.text}")

    def __repr__(self) -> str:
        return f"<ResultFile {self.path} of {self._handle}, {bytes_text(self.size)}>"


class FileList(list[ResultFile]):
    """Files of a run, by folder and path.

    Examples
    --------
    >>> run.files()["outputs/model.joblib"].save()
    """

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            for file in self:
                if file.path == index:
                    return file
            raise KeyError(index)
        return FileList(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas frame with one row for each file: ``path``, ``size`` (bytes), ``modified`` (UTC)."""
        import pandas

        frame = pandas.DataFrame(
            [(file.path, file.size, file.modified) for file in self], columns=["path", "size", "modified"]
        )
        frame["modified"] = pandas.to_datetime(frame["modified"], unit="s", utc=True)
        return frame

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(file.path)}</td><td>{bytes_text(file.size)}</td>"
            f"<td>{datetime.datetime.fromtimestamp(file.modified):%Y-%m-%d %H:%M:%S}</td></tr>"
            for file in self
        )
        head = "<thead><tr><th>path</th><th>size</th><th>modified</th></tr></thead>"
        return f"<table>{head}<tbody>{rows}</tbody></table>" if self else "No files."

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(files_text(self))


def files_text(files: Sequence[ResultFile]) -> str:
    """Return the files as a table."""
    if not files:
        return "No files."
    return table(
        ("size", "modified", "path"), [(bytes_text(f.size), ago(f.modified), f.path) for f in files], whole_end=True
    )
