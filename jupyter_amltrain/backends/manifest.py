"""List of the files of a submit by content, and what is read of them to be sent. Blocks on the disk; any thread."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_amltrain.agent.file_store import manifest_digest
from jupyter_amltrain.errors import SubmitError
from jupyter_amltrain.jobs.file_hash import hash_file
from jupyter_amltrain.jobs.snapshot import tree_digest


@dataclasses.dataclass(frozen=True)
class FileChanges:
    """A list of files as changes of another one that the machine has."""

    base: str
    changed: Sequence[Any] = ()
    removed: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Manifest:
    """The files of a submit: digest and mode by name, sizes and contents by digest."""

    rows: dict[str, tuple[str, bool]]
    sizes: dict[str, int]
    contents: dict[str, bytes | str]
    digest: str
    changes: FileChanges

    def tree_digest(self) -> str:
        """Return the digest of the tree, as that of a snapshot."""
        return tree_digest((name, executable, bytes.fromhex(raw)) for name, (raw, executable) in self.rows.items())


def manifest_of(files: Mapping[str, bytes | str], earlier: Sequence[Manifest]) -> Manifest:
    """Hash files, and compare their list with the most similar earlier one.

    Raises
    ------
    SubmitError
        A file cannot be read any more.
    """
    rows: dict[str, tuple[str, bool]] = {}
    sizes: dict[str, int] = {}
    contents: dict[str, bytes | str] = {}
    for name, content in files.items():
        if isinstance(content, bytes):
            digest, executable, size = hashlib.sha256(content).hexdigest(), False, len(content)
        else:
            with _readable(content):
                size, executable, raw = hash_file(content)
            digest = raw.hex()
        rows[name] = digest, executable
        sizes[digest], contents[digest] = size, content
    changes = FileChanges("", [[name, *row] for name, row in rows.items()])
    items = rows.items()
    for one in earlier:
        changed = [[name, *row] for name, row in items - one.rows.items()]
        removed = sorted(one.rows.keys() - rows.keys())
        if len(changed) + len(removed) < len(changes.changed) + len(changes.removed):
            changes = FileChanges(one.digest, changed, removed)
    return Manifest(rows, sizes, contents, manifest_digest(rows), changes)


def read_contents(sources: Mapping[str, bytes | str]) -> list[bytes]:
    """Return the contents with these digests.

    Raises
    ------
    SubmitError
        A file has another content by now: the machine would keep it under a wrong digest.
    """
    found = []
    for digest, source in sources.items():
        if isinstance(source, bytes):
            found.append(source)
            continue
        with _readable(source):
            content = Path(source).read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise _changed(source)
        found.append(content)
    return found


class PartReader:
    """Reads a large content in parts, and compares its digest at the end."""

    def __init__(self, digest: str, source: bytes | str) -> None:
        self._digest, self._source = digest, source
        self._hash = hashlib.sha256()
        self.offset = 0  #: of the next part

    def read(self, limit: int) -> tuple[bytes, bool]:
        """Return the next part, and whether it is the last one.

        Raises
        ------
        SubmitError
            The file has another content by now.
        """
        source = self._source
        if isinstance(source, bytes):
            part = source[self.offset : self.offset + limit]
            is_last = self.offset + len(part) >= len(source)
        else:
            with _readable(source), open(source, "rb") as file:
                file.seek(self.offset)
                part, is_last = file.read(limit), not file.read(1)
        self._hash.update(part)
        self.offset += len(part)
        if is_last and self._hash.hexdigest() != self._digest:
            raise _changed(str(source))
        return part, is_last


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SubmitError(
            f"Cannot read {path}: {error.strerror or error}.", hint="Submit again.", code="submit.changed"
        ) from error


def _changed(path: str) -> SubmitError:
    return SubmitError(f"{path} changed while it was being sent.", hint="Submit again.", code="submit.changed")
