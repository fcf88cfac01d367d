"""Copies of files of a run in a folder of this machine: small files many at a time, large ones in parts."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Sequence
from typing import Protocol

from jupyter_amltrain.backends.file_copy import FileCopy, adopt_parts
from jupyter_amltrain.backends.transfer import FIRST_PART_BYTES, Transfer
from jupyter_amltrain.errors import AmlTrainError, CommandError, TargetUnreachable
from jupyter_amltrain.kernel.read_ahead import Pack, ReadAhead
from jupyter_amltrain.kernel.session import controller
from jupyter_amltrain.output.progress_line import INTERVAL_S, ProgressLine
from jupyter_amltrain.schema.run import RunHandle
from jupyter_amltrain.schema.run_file import RunFile
from jupyter_amltrain.text import printable

#: Files that an error names at most.
_MAX_NAMED = 5
#: Small files after which the progress is shown, if it is time.
_SHOWN_EVERY = 50


class WrittenFile(Protocol):
    """A file that a run has written, as it was listed: a ``ResultFile``."""

    path: str
    size: int
    modified: float

    def copy_to(self, copy: FileCopy, transfer: Transfer, line: ProgressLine) -> None:
        """Copy the file in parts."""


class Download:
    """A download that goes on after files that cannot be read, and after a lost connection.

    A small file is copied as it is when it is read, a large one as it was listed. None is half written under its name.

    Parameters
    ----------
    copies
        Files, each with its place.
    """

    def __init__(self, handle: RunHandle, copies: Sequence[tuple[WrittenFile, FileCopy]]) -> None:
        self._handle, self._count = handle, len(copies)
        self._transfer = Transfer("copying", sum(file.size for file, _ in copies), files=len(copies))
        self._missing: dict[str, str] = {}  #: reasons by path
        self._waiting: list[tuple[WrittenFile, FileCopy]] = []
        for file, copy in copies:
            if copy.is_current:
                self._transfer.skip(file.size, 1)
            else:
                self._waiting.append((file, copy))

    def run(self, line: ProgressLine) -> None:
        """Copy.

        Raises
        ------
        CommandError
            Some files could not be read; the others are copied.
        TargetUnreachable
            The machine does not answer for longer than a copy waits.
        """
        alone = {file.path: (file, copy) for file, copy in self._waiting if file.size > FIRST_PART_BYTES}
        many = {file.path: (file, copy) for file, copy in self._waiting if file.path not in alone}
        try:
            if len(many) > 1:
                adopt_parts(copy for _, copy in many.values())
                alone = self._copy_many(many, line) | alone
            else:
                alone = many | alone
            for file, copy in alone.values():
                self._copy_alone(file, copy, line)
        except TargetUnreachable as error:
            left = self._count - self._transfer.done_files
            raise TargetUnreachable(
                f"{left:,} of {self._count:,} files of {self._handle} were not copied. {error.message}",
                hint="The same line copies them when it answers again.",
                code=error.code,
            ) from error
        if self._missing:
            raise self._incomplete()

    def _copy_many(
        self, many: dict[str, tuple[WrittenFile, FileCopy]], line: ProgressLine
    ) -> dict[str, tuple[WrittenFile, FileCopy]]:
        """Copy small files; return those that have to be read alone."""
        alone = {}
        with contextlib.closing(self._packs([file for file, _ in many.values()], line)) as packs:
            for number, (listed, content) in enumerate(itertools.chain.from_iterable(packs)):
                if number % _SHOWN_EVERY == 0:
                    line.show(self._transfer.text)
                file, copy = many[listed.path]
                if content is None:
                    alone[file.path] = (file, copy)
                    continue
                copy.write(content.data, content.modified)
                self._transfer.advance(file.size, 1)
                file.size, file.modified = copy.size, copy.modified  # as it was read
        return alone

    def _packs(self, files: Sequence[WrittenFile], line: ProgressLine) -> Generator[Pack, None, None]:
        own = controller()
        wanted = [RunFile(path=file.path, size=file.size, modified=file.modified) for file in files]

        async def begin() -> ReadAhead:
            run = await own.load(self._handle)
            return ReadAhead(own.backend(run.target), run, wanted, self._transfer)

        ahead = own.loop.call(begin(), None)
        try:
            while (pack := own.loop.call(ahead.next(INTERVAL_S), None)) != ():
                if pack:
                    yield pack
                else:
                    line.show(self._transfer.text)
        finally:
            own.loop.call(ahead.close())

    def _copy_alone(self, file: WrittenFile, copy: FileCopy, line: ProgressLine) -> None:
        try:
            file.copy_to(copy, self._transfer, line)
        except CommandError as error:
            self._missing[file.path] = error.details.get("reason", str(error))
        else:
            self._transfer.advance(0, 1)

    def _incomplete(self) -> AmlTrainError:
        named = [f"{printable(path)} ({reason})" for path, reason in list(self._missing.items())[:_MAX_NAMED]]
        if len(self._missing) > _MAX_NAMED:
            named.append(f"{len(self._missing) - _MAX_NAMED:,} more")
        return CommandError(
            f"{len(self._missing):,} of {self._count:,} files of {self._handle} were not copied: {', '.join(named)}.",
            hint="The others are there; the same line copies the rest.",
            code="files.missing",
            details={"missing": dict(self._missing)},
        )
