"""Transport to a machine that SSH reaches: requests of its agent, and files that travel there and back."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_amltrain.agent.whole_files import WholeFile
from jupyter_amltrain.backends.file_copy import FileCopy, adopt_parts
from jupyter_amltrain.backends.manifest import FileChanges, Manifest, PartReader, manifest_of, read_contents
from jupyter_amltrain.backends.ssh_connection import LOST, REPLY_TIMEOUT_S, SshConnection
from jupyter_amltrain.backends.transfer import GROWTH_BYTES, MAX_PACK_FILES, PartSize, Transfer, pack_length
from jupyter_amltrain.backends.transport import FileEvents, Transport, agent_error
from jupyter_amltrain.errors import AmlTrainError, SubmitUnsure, TargetError, TargetUnreachable
from jupyter_amltrain.jobs.launch import TargetMachine
from jupyter_amltrain.jobs.snapshot import is_inside
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.run_file import RunFile

#: Slowest link on which a request with data is waited for (bytes per second).
MIN_RATE = 10_000
#: Slowest disk of which a digest is waited for (bytes per second).
MIN_HASH_RATE = 20_000_000
#: Seconds for which a submit whose answer was lost is sent again.
SUBMIT_RETRY_S = 30.0
#: Lists of files that are kept to send the next one as changes.
_MAX_MANIFESTS = 4
#: Copies of one file that changes meanwhile, before it is left for the next time.
_MAX_COPIES = 3
#: Seconds that the machine waits for changes before it answers.
_WAIT_S = 20.0


class SshFileEvents(FileEvents):
    """Change events of folders of the other machine: one long request for all of them."""

    def __init__(self, connection: SshConnection, loop: LoopThread) -> None:
        self._connection, self._loop = connection, loop
        self._key = uuid.uuid4().hex
        self._paths: frozenset[str] = frozenset()
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._error: AmlTrainError | None = None

    async def wait(self, paths: Sequence[str], timeout: float) -> Collection[str]:
        """See :meth:`FileEvents.wait`."""
        requested = frozenset(paths)
        if requested != self._paths or self._task is None or self._task.done():
            self._paths = requested
            if self._task is not None:
                self._task.cancel()
            self._task = self._loop.start(self._follow(requested), "changes of files")
        if not self._changed & requested and self._error is None:
            self._wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), timeout)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        changed = self._changed & requested
        self._changed -= changed
        return changed

    async def _follow(self, paths: frozenset[str]) -> None:
        try:
            while True:
                reply, _ = await self._connection.request(
                    "wait", timeout=_WAIT_S + REPLY_TIMEOUT_S, paths=sorted(paths), seconds=_WAIT_S, key=self._key
                )
                self._changed.update(reply.get("changed", ()))
                if self._changed:
                    self._wake.set()
        except (AmlTrainError, OSError) as error:
            if self._connection.closed:
                return
            self._error = error if isinstance(error, AmlTrainError) else TargetError(str(error))
            self._changed.update(paths)  # nobody knows what has changed meanwhile
            self._wake.set()

    def close(self) -> None:
        """See :meth:`FileEvents.close`."""
        if self._task is not None:
            self._task.cancel()


class SshTransport(Transport):
    """Transport to a machine that SSH reaches.

    Parameters
    ----------
    mirror
        Local folder for copies of its files.
    """

    def __init__(self, connection: SshConnection, loop: LoopThread, mirror: Path) -> None:
        self.connection, self._loop, self._mirror = connection, loop, mirror
        target = connection.target
        self.home = target.workdir
        self.machine = TargetMachine(python=target.python or "python3", has_our_disk=False)
        self._sent: set[str] = set()  # digests of files that the machine has
        self._uploads: dict[str, asyncio.Future[None]] = {}  # of large files that are being sent, by digest
        self._manifests: list[Manifest] = []  # lists of files that the machine has, the newest last
        self._digests: dict[str, str] = {}  # of trees, by the folder that `put` has made
        self._fetching = asyncio.Lock()
        self._part = PartSize()
        self.sending: dict[str, Transfer] = {}  #: by the folder that :meth:`put` makes

    async def call(self, op: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """See :meth:`Transport.call`; a submit whose answer was lost is sent again, which starts no second job."""
        deadline, sent = time.monotonic() + SUBMIT_RETRY_S, False
        while True:
            try:
                reply, _ = await self._request("call", call=op, payload=dict(payload))
                break
            except TargetUnreachable as lost:
                sent |= lost.code == LOST
                if op != "submit" or not sent:
                    raise
                if time.monotonic() > deadline:
                    raise SubmitUnsure(
                        f"It is not known whether {payload.get('run')} was accepted: {lost.message}",
                        hint="If it was, it appears in: %aml_runs",
                    ) from lost
                await asyncio.sleep(1.0)
                self.connection.retry_soon()
        answer: dict[str, Any] = reply["reply"]
        if error := answer.get("error"):
            raise agent_error(error)
        return answer

    async def _request(self, op: str, data: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        timeout = REPLY_TIMEOUT_S + max(len(data), int(fields.get("limit", 0))) / MIN_RATE
        timeout += int(fields.get("size", 0)) / MIN_HASH_RATE  # of a digest
        reply, found = await self.connection.request(op, data, timeout, **fields)
        if "error" in reply:
            raise agent_error(reply["error"])
        return reply, found

    async def put(self, files: Mapping[str, bytes | str], folder: str) -> None:
        """See :meth:`Transport.put`; only contents that the machine does not have travel."""
        try:
            await self._put(files, folder)
        except OSError as error:
            raise TargetError(
                f"Cannot write to {self.home} on {self.connection.target.name}: {error.strerror or error}.",
                hint="Free space there, or attach it again with another folder: --workdir DIR",
                code="ssh.not_writable",
            ) from error

    async def _put(self, files: Mapping[str, bytes | str], folder: str) -> None:
        manifest = await self._loop.offload(manifest_of, dict(files), list(self._manifests))
        sizes, contents = manifest.sizes, manifest.contents
        tree = asyncio.ensure_future(self._loop.offload(manifest.tree_digest))  # while the machine answers
        # The first message has the small files that this kernel has not sent yet: often it is the only one.
        new = {digest: contents[digest] for digest in contents if digest not in self._sent}
        if sum(sizes[digest] for digest in new) > self._part.bytes:  # ask what is there from earlier kernels
            new = {}
        missing = await self._stage(manifest, new, folder)
        transfer = Transfer("sending", sum(sizes[digest] for digest in missing))
        self.sending[folder] = transfer
        try:
            while missing:
                pack: dict[str, bytes | str] = {}
                total, part = 0, self._part.bytes
                for digest in missing:
                    if sizes[digest] > part:
                        await self._send_large(digest, contents[digest], transfer)
                    elif total + sizes[digest] <= part:
                        pack[digest] = contents[digest]
                        total += sizes[digest]
                begin = time.monotonic()
                again = await self._stage(manifest, pack, folder)
                self._part.took(total, time.monotonic() - begin)
                transfer.advance(total)
                if again == missing:
                    raise TargetError(f"{self.connection.target.name} does not keep the files that were sent.")
                missing = again
        finally:
            del self.sending[folder]
        self._sent.update(sizes)
        self._digests[folder] = await tree

    def sent_digest(self, folder: str) -> str:
        """Return the digest of the tree that :meth:`put` has sent to a folder; once."""
        return self._digests.pop(folder)

    async def _stage(self, manifest: Manifest, new: Mapping[str, bytes | str], folder: str) -> list[str]:
        """Send the list of files and `new` contents; return the digests of those that the machine lacks."""
        data = await self._loop.offload(read_contents, new)
        sent = [[digest, len(part)] for digest, part in zip(new, data, strict=True)]
        is_known = manifest in self._manifests
        short = FileChanges(manifest.digest) if is_known else manifest.changes
        whole = FileChanges("", [[name, *row] for name, row in manifest.rows.items()])
        for changes in (short, whole):  # the whole list only where the machine has lost the earlier one
            fields = {"base": changes.base, "changed": changes.changed, "removed": changes.removed}
            reply, _ = await self._request(
                "stage", b"".join(data), sent=sent, folder=folder, manifest=manifest.digest, **fields
            )
            if reply["base"]:
                break
            data, sent = [], []  # they are there now
        if not is_known:
            self._manifests.append(manifest)
            del self._manifests[:-_MAX_MANIFESTS]
        missing: list[str] = reply["missing"]
        return missing

    async def _send_large(self, digest: str, content: bytes | str, transfer: Transfer) -> None:
        """Send a file in parts, or wait for another submit that sends it: trials that start at once share values."""
        if (other := self._uploads.get(digest)) is not None:
            await asyncio.wait([other])
            if not other.cancelled() and other.exception() is None:
                return
        upload = self._uploads[digest] = asyncio.ensure_future(self._upload(digest, content, transfer))
        try:
            await upload
        finally:
            if self._uploads.get(digest) is upload:
                del self._uploads[digest]

    async def _upload(self, digest: str, content: bytes | str, transfer: Transfer) -> None:
        upload, reader = uuid.uuid4().hex, PartReader(digest, content)
        while True:
            offset = reader.offset
            part, end = await self._loop.offload(reader.read, self._part.bytes)
            begin = time.monotonic()
            await self._request("append", part, digest=digest, offset=offset, last=end, upload=upload)
            self._part.took(len(part), time.monotonic() - begin)
            transfer.advance(len(part))
            if end:
                return

    async def read_from(self, path: str, offset: int, limit: int) -> bytes:
        """See :meth:`Transport.read_from`."""
        return (await self._request("read", path=path, offset=offset, limit=limit))[1]

    async def size(self, path: str) -> int:
        """See :meth:`Transport.size`."""
        return int((await self._request("size", path=path))[0]["size"])

    async def kind(self, path: str) -> str:
        """Return ``file``, ``folder``, or an empty text if the machine has no such path."""
        return str((await self._request("size", path=path))[0]["kind"])

    async def stat(self, path: str) -> RunFile | None:
        """See :meth:`Transport.stat`."""
        facts, _ = await self._request("size", path=path)
        return RunFile(path=path, size=facts["size"], modified=facts["modified"]) if facts["kind"] == "file" else None

    async def read_many(self, folder: str, names: Sequence[str], limit: int) -> Sequence[WholeFile | None]:
        """See :meth:`Transport.read_many`; one request."""
        reply, data = await self._request("read_many", folder=folder, names=list(names), limit=limit)
        files: list[WholeFile | None] = []
        at = 0
        for facts in reply["files"]:
            if facts is None:
                files.append(None)
                continue
            size, modified = facts
            files.append(WholeFile(data[at : at + size], modified))
            at += size
        if at != len(data) or len(files) != len(names):
            raise TargetError(f"{self.connection.target.name} has sent other files than it names.", code="ssh.files")
        return files

    async def list(self, folder: str) -> Sequence[RunFile]:
        """See :meth:`Transport.list`."""
        return [file for file, _ in await self._list(folder, ())]

    async def _list(self, folder: str, without: Collection[str]) -> Sequence[tuple[RunFile, bool]]:
        """Return the files below a folder, and whether each is executable."""
        reply, _ = await self._request("list", path=folder, without=sorted(without))
        for path, *_ in reply["files"]:  # which become names of files here
            if not is_inside(path):
                raise TargetError(
                    f"{self.connection.target.name} lists a file outside of {folder}: {path!r}. Nothing was copied.",
                    hint="No agent does so: check that machine.",
                    code="ssh.path",
                )
        return [
            (RunFile(path=path, size=size, modified=modified), bool(is_executable))
            for path, size, modified, is_executable in reply["files"]
        ]

    async def fetch(self, path: str, without: Collection[str] = ()) -> str | None:
        """See :meth:`Transport.fetch`; files that have not changed are not copied again."""
        async with self._fetching:  # two copies of one file at once would be mixed
            return await self._fetch(path, without)

    async def _fetch(self, path: str, without: Collection[str]) -> str | None:
        facts, _ = await self._request("size", path=path)
        local = self.local_path(path)
        if facts["kind"] == "file":
            await self._fetch_file(path, facts, live=False)
        elif facts["kind"] == "folder":
            files = await self._list(path, without)
            await self._loop.offload(lambda: local.mkdir(mode=0o700, parents=True, exist_ok=True))
            copies = {file.path: _copy_of(local / file.path, file.path, file.size, file.modified) for file, _ in files}
            changed = await self._loop.offload(lambda: {name: c for name, c in copies.items() if not c.is_current})
            await self._copy_all(path, changed)
            await self._loop.offload(_set_modes, {local / file.path: executable for file, executable in files})
        else:
            return None
        return str(local)

    async def _fetch_file(self, path: str, facts: Mapping[str, Any], *, live: bool) -> None:
        copy = _copy_of(self.local_path(path), path, facts["size"], facts["modified"])
        if not await self._loop.offload(lambda: copy.is_current):
            await self._copy(path, copy, live=live)

    async def fetch_live(self, paths: Sequence[str]) -> None:
        """Copy what has been appended to files of a living run; their end is compared by :meth:`fetch` later."""
        async with self._fetching:
            for path in paths:
                facts, _ = await self._request("size", path=path)
                if facts["kind"] == "file":
                    await self._fetch_file(path, facts, live=True)

    async def _copy_all(self, folder: str, copies: Mapping[str, FileCopy]) -> None:
        """Copy files of a folder: large ones in parts, small ones many at a time."""
        waiting = list(copies.items())
        await self._loop.offload(adopt_parts, list(copies.values()))
        while waiting:
            pack = waiting[: pack_length([copy.size for _, copy in waiting[:MAX_PACK_FILES]], self._part.bytes)]
            del waiting[: len(pack)]
            if len(pack) == 1:
                ((name, copy),) = pack
                await self._copy(f"{folder}/{name}", copy)
                continue
            begin = time.monotonic()
            limit = sum(copy.size for _, copy in pack) + GROWTH_BYTES
            files = await self.read_many(folder, [name for name, _ in pack], limit)
            self._part.took(sum(len(file.data) for file in files if file), time.monotonic() - begin)
            await self._loop.offload(_write_all, [copy for _, copy in pack], files)

    def local_path(self, path: str) -> Path:
        """Return the place of a remote path in the mirror."""
        below = posixpath.relpath(path, self.home)
        if below.startswith(".."):
            raise ValueError(path)
        return self._mirror / below

    async def _copy(self, remote: str, copy: FileCopy, *, live: bool = False, tries: int = _MAX_COPIES) -> None:
        """Copy one file; an interrupted copy continues where it ended.

        Its parts may be of two versions of the file: it is compared unless it is `live`, and copied again.
        """
        offset = begun = await self._loop.offload(copy.begin)
        while offset < copy.size:
            begin = time.monotonic()
            data = await self.read_from(remote, offset, min(self._part.bytes, copy.size - offset))
            self._part.took(len(data), time.monotonic() - begin)
            if not data:  # it has become shorter
                break
            await self._loop.offload(copy.append, data)
            offset += len(data)
        if not live:
            facts, _ = await self._request("size", path=remote)
            is_same = not begun and (facts["size"], facts.get("modified")) == (copy.size, copy.modified)
            if not is_same and not await self._is_part_of(remote, facts, copy):
                await self._loop.offload(copy.restart)
                if facts["kind"] == "file" and tries > 1:
                    fresh = FileCopy(copy.to, facts["size"], facts["modified"])
                    await self._copy(remote, fresh, tries=tries - 1)
                return
        await self._loop.offload(copy.complete)

    async def _is_part_of(self, remote: str, facts: Mapping[str, Any], copy: FileCopy) -> bool:
        """Whether a copy is the beginning of the file; lines may have been appended to it since."""
        if facts["kind"] != "file":
            return False
        reply, _ = await self._request("digest", path=remote, size=copy.size)
        return bool(reply["sha256"] == await self._loop.offload(copy.digest))

    def events(self) -> FileEvents:
        """See :meth:`Transport.events`."""
        return SshFileEvents(self.connection, self._loop)

    async def close(self) -> None:
        """See :meth:`Transport.close`."""
        await self.connection.close()


def _copy_of(to: Path, name: str, size: int, modified: float) -> FileCopy:
    """Return the copy of a file of a run; lines are only ever appended to the journals."""
    return FileCopy(to, size, modified, grows=name.endswith(".jsonl"))


def _set_modes(executable: Mapping[Path, bool]) -> None:
    """Give copies the mode that decides the digest of a tree."""
    for path, is_executable in executable.items():
        with contextlib.suppress(FileNotFoundError):  # it has changed during the copy
            path.chmod(0o700 if is_executable else 0o600)


def _write_all(copies: Sequence[FileCopy], files: Sequence[WholeFile | None]) -> None:
    for copy, file in zip(copies, files, strict=True):
        if file is not None:  # else it has changed: the next fetch copies it
            copy.write(file.data, file.modified)
