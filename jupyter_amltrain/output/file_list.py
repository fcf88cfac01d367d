"""``FileList``: the files that ``run.files()`` returns, a list that shows itself as a table."""

from __future__ import annotations

import datetime
import functools
import hashlib
import html
import os
import posixpath
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_amltrain.backends.file_copy import FileCopy
from jupyter_amltrain.backends.transfer import FIRST_PART_BYTES, PartSize, Transfer, resumed
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.kernel.result_files import read_result
from jupyter_amltrain.kernel.session import controller
from jupyter_amltrain.output.download import Download
from jupyter_amltrain.output.progress_line import ProgressLine
from jupyter_amltrain.schema.run import RunHandle
from jupyter_amltrain.schema.run_file import RunFile
from jupyter_amltrain.text import ago, bytes_text, close_matches, did_you_mean, printable, table

if TYPE_CHECKING:
    import pandas

#: Files that an error names at most.
_MAX_NAMED = 5
#: Code of the error for a file of another version than the listed one.
_CHANGED = "files.changed"
#: Files that a table shows, and folders with the rest of them.
_MAX_SHOWN, _MAX_FOLDERS = 200, 20


class ResultFile:
    """A file that a run's script has written.

    Attributes
    ----------
    path
        Path in the run's folder, e.g. ``outputs/model.joblib``.
    size
        Bytes when the files were listed: what is appended later is not read.
    modified
        Unix seconds of its last change.
    """

    def __init__(self, handle: RunHandle, file: RunFile) -> None:
        self._handle = handle
        self.path, self.size, self.modified = file.path, file.size, file.modified
        self._in_one_read = False  #: the last read was all of the file, at one moment

    def read(self) -> bytes:
        """Return the content.

        Raises
        ------
        CommandError
            The file was replaced or deleted.
        """
        with ProgressLine() as line:
            data = b"".join(self._blocks(0, Transfer("reading", self.size), line))
            self._check(lambda: hashlib.sha256(data).hexdigest(), line)
        return data

    def save(self, to: str | os.PathLike[str] = ".") -> Path:
        """Copy the file to a folder or to a new file, and return its path.

        An interrupted copy continues where it ended, when it is repeated.

        Raises
        ------
        CommandError
            A file with this name exists, or the file of the run was replaced or deleted.
        """
        path = Path(to)
        path = path / Path(self.path).name if path.is_dir() else path
        if os.path.lexists(path):
            raise CommandError(f"{path} already exists.", hint="Name another file: save('copy-of-it')")
        with ProgressLine() as line:
            self.copy_to(FileCopy(path, self.size, self.modified), Transfer("copying", self.size), line)
        return path

    def copy_to(self, copy: FileCopy, transfer: Transfer, line: ProgressLine) -> None:
        """Copy the file in parts.

        Raises
        ------
        CommandError
            The file of the run was replaced or deleted, or cannot be read.
        """
        begin = copy.begin()
        transfer.skip(begin)
        try:
            for block in self._blocks(begin, transfer, line):
                copy.append(block)
            self._check(copy.digest, line)
        except CommandError as error:
            if error.code == _CHANGED:  # what is there is of a version that is gone
                copy.restart()
            raise
        copy.complete()

    def _check(self, digest: Callable[[], str], line: ProgressLine) -> None:
        """Check that what was read is of one version of the file; lines may have been appended to it since."""
        if self._in_one_read:
            return
        own = controller()

        async def get() -> RunFile | None:
            run = await own.load(self._handle)
            return await own.backend(run.target).files.stat(run.run_id, self.path)

        now = own.loop.call(get(), None)
        if now is not None and now.size == self.size and abs(now.modified - self.modified) < 1e-3:
            return
        if now is not None and now.size > self.size:
            whole = hashlib.sha256()
            for block in self._blocks(0, Transfer("comparing", self.size), line):
                whole.update(block)
            if whole.hexdigest() == digest():
                return
        raise self._changed()

    def _changed(self) -> CommandError:
        return CommandError(
            f"{self.path} of {self._handle} was replaced or deleted while it was copied.",
            hint="List the files again: run.files()",
            code=_CHANGED,
            details={"reason": "replaced or deleted while it was copied"},
        )

    def _blocks(self, offset: int, transfer: Transfer, line: ProgressLine) -> Iterator[bytes]:
        """Yield the content from byte `offset`, with a line of progress if it takes longer than a second."""
        own, part = controller(), PartSize()

        async def get() -> bytes:
            run = await own.load(self._handle)
            limit = min(part.bytes, self.size - offset + 1)  # one more byte says that there are more
            backend = own.backend(run.target)
            return await resumed(lambda: read_result(backend, run, self.path, offset, limit), transfer)

        self._in_one_read = self.size == 0
        while offset < self.size:
            begin = time.monotonic()
            try:
                block = own.loop.call(get(), None)
            except OSError as error:
                raise CommandError(
                    f"{self.path} of {self._handle} cannot be read: {error.strerror or error}.",
                    code="files.read",
                    details={"reason": error.strerror or str(error)},
                ) from error
            part.took(len(block), time.monotonic() - begin)
            if not block:
                raise self._changed()
            self._in_one_read = offset == 0 and len(block) == self.size < FIRST_PART_BYTES
            block = block[: self.size - offset]
            yield block
            offset += len(block)
            transfer.advance(len(block))
            line.show(transfer.text and f"{printable(self.path)}: {transfer.text}")

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

    def download(self, path: str = "", to: str | os.PathLike[str] = ".") -> Path:
        """Copy a file, a folder, or all files into a folder, and return the path of the copy.

        An interrupted call continues when it is repeated: files that are there already are not copied again. A small
        file is copied as it is when it is read, even if it has changed since it was listed.

        Parameters
        ----------
        path
            ``outputs/model.joblib``, or a folder such as ``outputs``; empty for all files, with their folders.
        to
            Folder; created if it does not exist.

        Raises
        ------
        CommandError
            There is no such file, or `to` has other files of these names: then nothing is written. Or some files
            could not be read: the others are copied.
        TargetUnreachable
            The target has stopped answering, and has not come back within a minute.
        """
        folder = Path(to).expanduser()
        copies = self._copies(path.strip("/"), folder)
        try:
            with ProgressLine() as line:
                Download(copies[0][0]._handle, copies).run(line)
        except OSError as error:
            raise CommandError(
                f"Cannot write {error.filename or folder}: {error.strerror or error}.",
                hint="Choose another folder, or free some space.",
                code="files.write",
                field="to",
            ) from error
        return folder / posixpath.basename(path.strip("/"))

    def _copies(self, path: str, folder: Path) -> list[tuple[ResultFile, FileCopy]]:
        """Return the files at a path, each with its place in `folder`."""
        above = posixpath.dirname(path)
        root, copies, other = os.path.realpath(folder), list[tuple[ResultFile, FileCopy]](), list[str]()
        is_inside = functools.lru_cache(maxsize=1024)(functools.partial(_is_below, root))
        for file in self:
            if path and file.path != path and not file.path.startswith(f"{path}/"):
                continue
            name = file.path[len(above) + 1 :] if above else file.path
            path_here = os.path.join(folder, name)
            copy = FileCopy(path_here, file.size, file.modified)
            # No link, and no name that a job has made up, leads out of the folder.
            if not is_inside(os.path.dirname(path_here)) or (
                os.path.lexists(path_here) and (os.path.islink(path_here) or not copy.is_current)
            ):
                other.append(name)
            copies.append((file, copy))
        if not copies:
            near = close_matches(path, [file.path for file in self])
            raise CommandError(
                f"The run has no file {path!r}." if path else "The run has written no files.",
                hint=did_you_mean(near, "List them: run.files()"),
                code="files.path",
                field="path",
            )
        if other:
            more = f" and {len(other) - _MAX_NAMED} more" if len(other) > _MAX_NAMED else ""
            named = ", ".join(other[:_MAX_NAMED]) + more
            raise CommandError(
                f"{folder} has other files of these names: {named}. Nothing was written.",
                hint="Choose another folder, or move them away.",
                code="files.exists",
                field="to",
            )
        return copies

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
            f"<tr><td>{html.escape(row.path)}</td><td>{bytes_text(row.size)}</td>"
            f"<td>{datetime.datetime.fromtimestamp(row.modified):%Y-%m-%d %H:%M:%S}</td></tr>"
            for row in _rows(self)
        )
        head = "<thead><tr><th>path</th><th>size</th><th>modified</th></tr></thead>"
        return f"<table>{head}<tbody>{rows}</tbody></table>" if self else "No files."

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(files_text(self))


def _is_below(root: str, folder: str) -> bool:
    real = os.path.realpath(folder)
    return real == root or real.startswith(root.rstrip(os.sep) + os.sep)


def files_text(files: Sequence[ResultFile]) -> str:
    """Return the files as a table."""
    if not files:
        return "No files."
    rows = [(bytes_text(row.size), ago(row.modified), row.path) for row in _rows(files)]
    return table(("size", "modified", "path"), rows, whole_end=True)


class _Row(NamedTuple):
    path: str
    size: int
    modified: float


def _rows(files: Sequence[ResultFile]) -> list[_Row]:
    """Return a row for each of the first files, one for each folder with the others, and the sum of all."""
    rows = [_Row(printable(file.path), file.size, file.modified) for file in files[:_MAX_SHOWN]]
    if len(files) <= _MAX_SHOWN:
        return rows
    folders: dict[str, list[ResultFile]] = {}
    for file in files[_MAX_SHOWN:]:
        folders.setdefault(posixpath.dirname(file.path), []).append(file)
    largest = sorted(folders, key=lambda name: -len(folders[name]))[:_MAX_FOLDERS]
    rows += [_sum(f"{printable(name)}/: {len(folders[name]):,} more files", folders[name]) for name in largest]
    if rest := [file for name, inside in folders.items() if name not in largest for file in inside]:
        rows.append(_sum(f"{len(folders) - len(largest):,} other folders: {len(rest):,} more files", rest))
    return [*rows, _sum(f"all {len(files):,} files", files)]


def _sum(text: str, files: Sequence[ResultFile]) -> _Row:
    return _Row(text, sum(file.size for file in files), max(file.modified for file in files))
