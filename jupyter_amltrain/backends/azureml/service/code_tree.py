"""What lies in the code folder of a job: the script to read, the agent, and trees of many files as packs. Pure but
for reading the files.

A tree of many files is one pack (*base*); after an edit a second, small pack holds what is new (*edit*), and
``manifest.json`` says which packs to unpack, in their order, and what to remove then.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jupyter_amltrain.errors import SubmitError

#: More files than this go as a pack: one request instead of one a file.
PLAIN_FILES = 20
OURS = ".amltrain"
AGENT, JOB, MANIFEST = f"{OURS}/agent.pyz", f"{OURS}/job.json", f"{OURS}/manifest.json"
#: An edit that holds more of the tree than this is a new base.
_EDIT_SHARE = 0.25


class Content(NamedTuple):
    """One file of a tree."""

    source: str | bytes  #: path here, or the bytes
    size: int
    sha256: str
    executable: bool = False

    def read(self) -> bytes:
        """Its bytes.

        Raises
        ------
        SubmitError
            They are others than those that :attr:`sha256` is of.
        """
        if isinstance(self.source, bytes):
            return self.source
        try:
            data = Path(self.source).read_bytes()
        except OSError as error:
            raise _unreadable(self.source, error) from error
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise SubmitError(f"{self.source} was changed while it was being sent.", hint="Submit again.")
        return data


Tree = Mapping[str, Content]


def tree_of(files: Mapping[str, str | bytes]) -> dict[str, Content]:
    """The files with their digests.

    Raises
    ------
    SubmitError
        One cannot be read any more.
    """
    found = {}
    for name in sorted(files):
        content = files[name]
        try:
            found[name] = _content(content)
        except OSError as error:
            raise _unreadable(content, error) from error
    return found


def _unreadable(path: str | bytes, error: OSError) -> SubmitError:
    return SubmitError(f"Cannot read {path!r}: {error.strerror or error}.", hint="Submit again.")


def snapshot_of(tree: Tree) -> str:
    """The digest that a snapshot (:func:`jupyter_amltrain.snapshot.take`) of these files has."""
    whole = hashlib.sha256()
    for name in sorted(tree):
        label = name.encode()
        whole.update(b"%d %s %d " % (len(label), label, tree[name].executable) + bytes.fromhex(tree[name].sha256))
    return whole.hexdigest()


def of_bytes(data: bytes) -> Content:
    """Content that is not a file here."""
    return Content(data, len(data), hashlib.sha256(data).hexdigest())


def of_json(value: Any) -> Content:
    """Content that is JSON; equal values are equal bytes."""
    return of_bytes(json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n")


def digest_of(snapshot: str, ours: Iterable[Content]) -> str:
    """What a code asset is found by: of the user's files and of ours, whatever packs they travel in."""
    whole = hashlib.sha256(b"amltrain code 1\n" + snapshot.encode())
    for content in ours:
        whole.update(b"\n" + content.sha256.encode())
    return whole.hexdigest()


class Packed(NamedTuple):
    """A tree ready to be sent: blobs by name, and what later edits want to know."""

    blobs: dict[str, Content]
    base: str  #: name of the base pack; empty for a tree without packs
    table: dict[str, str]  #: file in the base -> sha256, ``+`` at its end for executables


def plain(tree: Tree) -> Packed:
    """Every file as it is."""
    return Packed(dict(tree), "", {})


def based(tree: Tree, script: str) -> Packed:
    """All but the script as one pack."""
    rest = {name: content for name, content in tree.items() if name != script}
    pack = of_bytes(packed(rest))
    name = f"{OURS}/base-{pack.sha256[:16]}.tar.gz"
    manifest = _manifest([name], [])
    blobs = {script: tree[script], MANIFEST: manifest, name: pack}
    return Packed(blobs, name, {file: marked(content) for file, content in rest.items()})


def edited(tree: Tree, script: str, base: str, table: Mapping[str, str], pack: Content) -> Packed | None:
    """What differs from a base that the service has, as a second pack; ``None`` where that is too much.

    Parameters
    ----------
    base, table, pack
        Name, files and content (whose bytes need not be here) of the base.
    """
    rest = {name: content for name, content in tree.items() if name != script}
    new = {name: content for name, content in rest.items() if table.get(name) != marked(content)}
    size = sum(content.size for content in rest.values())
    if sum(content.size for content in new.values()) > _EDIT_SHARE * size + 4096:
        return None
    blobs = {script: tree[script], base: pack}
    packs = [base]
    if new:
        edit = of_bytes(packed(new))
        packs.append(f"{OURS}/edit-{edit.sha256[:16]}.tar.gz")
        blobs[packs[-1]] = edit
    removed = sorted(table.keys() - rest.keys())
    blobs[MANIFEST] = _manifest(packs, removed)
    return Packed(blobs, base, dict(table))


def _manifest(packs: list[str], removed: list[str]) -> Content:
    # The names of the packs are their digests.
    digest = hashlib.sha256("\n".join([*packs, "", *removed]).encode()).hexdigest()[:16]
    return of_json({"schema": 1, "digest": digest, "packs": packs, "removed": removed})


def marked(content: Content) -> str:
    """Digest and mode of a file."""
    return content.sha256 + ("+" if content.executable else "")


def packed(tree: Tree) -> bytes:
    """A tar.gz; equal trees give equal bytes."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=6, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(tree):
            content = tree[name]
            data = content.read()
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755 if content.executable else 0o644
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _content(content: str | bytes) -> Content:
    if isinstance(content, bytes):
        return of_bytes(content)
    digest, size = hashlib.sha256(), 0
    with open(content, "rb", buffering=0) as file:
        executable = bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR)
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return Content(content, size, digest.hexdigest(), executable)
