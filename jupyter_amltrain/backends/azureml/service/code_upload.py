"""Upload of a job's code to the workspace's storage, of which only changed files are sent."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import logging
import os
import stat
import tarfile
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from jupyter_amltrain.agent import testing
from jupyter_amltrain.backends.azureml.service import history, http
from jupyter_amltrain.errors import AmlTrainError, StateError, SubmitError, TargetUnreachable
from jupyter_amltrain.state_dir import locked, read_json, write_json

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Workspace
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall


class Signatures:
    """Signatures of addresses, by the beginning of the address. Secrets: in memory only, for less than their hour."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: dict[str, tuple[float, str]] = {}

    def put(self, begin: str, signature: str) -> None:
        """Keep one for all addresses that begin so."""
        with self._guard:
            self._known[begin] = time.time() + 3000, signature

    def get(self, url: str) -> str:
        """One that opens an address; empty for none."""
        with self._guard:
            now = time.time()
            self._known = {begin: pair for begin, pair in self._known.items() if pair[0] > now}
            found = (text for begin, (_, text) in self._known.items() if url == begin or url.startswith(begin + "/"))
            return next(found, "")


#: Those of this process.
KNOWN = Signatures()


def of_account(workspace: Workspace, host: str) -> str:
    """Of the storage account of the workspace (recorded: ``secretsType`` ``Sas``, a token with a leading ``?``)."""
    key = f"account:{workspace.name}"
    if found := KNOWN.get(key):
        return found
    store = "datastores/workspaceblobstore"
    facts = (workspace.arm.get(store, api=http.ARM, act="look at the workspace's storage").json or {})["properties"]
    if not host.startswith(f"{facts.get('accountName')}."):
        return ""
    secret = workspace.arm.post(
        f"{store}/listSecrets",
        api=http.ARM_PREVIEW,
        json={"expirableSecret": True, "expireAfterHours": 1},
        act="ask for a signature of the workspace's storage",
    ).json
    token = str((secret or {}).get("sasToken") or "").lstrip("?")
    if token:
        KNOWN.put(key, token)
    return token


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
    """The digest that a snapshot (:func:`jupyter_amltrain.jobs.snapshot.take`) of these files has."""
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


log = logging.getLogger("amltrain.azure")

#: Of earlier assets so many are remembered.
_MAX_RECENT = 12
#: Copying on the service's side, in one answer, is for files up to 256 MiB (``Copy Blob From URL``).
_MAX_COPY_BYTES = 256 << 20


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
        if content.size > _MAX_COPY_BYTES:
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
                write_json(self._file, {"schema": 1, "assets": [row, *kept][:_MAX_RECENT]})

        _quietly(change)


def _quietly(act: Callable[[], None]) -> None:
    try:
        act()
    except (OSError, AmlTrainError) as error:
        log.warning("%s", error)


#: The SDK's word for how the hash was made; ours is only compared with ours.
HASH_VERSION = "202208"
#: A code asset is a folder of its container: so in every recording, in the API's example and in what the SDK sends.
CODE_FOLDER = "code"
#: Larger files go in blocks of this (bytes).
_BLOCK_BYTES = 16 << 20


def send(
    call: ServiceCall,
    workspace: Workspace,
    *,
    files: Mapping[str, str | bytes],
    script: str,
    digest: str,
    job_file: Mapping[str, Any],
) -> str:
    """The id of a code asset with these files; a folder here where only the SDK can send them.

    Parameters
    ----------
    script
        Name of the script, which stays readable.
    digest
        Of the snapshot.
    job_file
        ``.amltrain/job.json``.
    """
    from jupyter_amltrain.backends.agent_zipapp import build

    agent = of_bytes(build(call.root).read_bytes())
    job = of_json(job_file)
    whole = digest_of(digest, (agent, job))
    known = Sent(call.root, workspace.name)
    if found := _there(workspace, whole):
        log.info("code %s is there: %s", whole[:12], found.rpartition("/codes/")[2])
        return found
    tree = tree_of(files)
    if (now := snapshot_of(tree)) != digest:
        # Somebody has saved a file since: under the snapshot's name it would be found for what it is not.
        whole = digest_of(now, (agent, job))
        if found := _there(workspace, whole):
            return found
    ours = {AGENT: agent, JOB: job}
    packed = _packed(tree, script, known)
    upload = _Upload(call, workspace, known)
    try:
        try:
            return upload.asset(_with(packed, ours), whole)
        except _NotCopied as error:
            log.info("%s", error)
            packed = based(tree, script)
            return upload.asset(_with(packed, ours), whole)
    except (TargetUnreachable, SubmitError):  # the SDK would try for minutes what we have just tried
        raise
    except AmlTrainError as error:
        log.warning("the code is sent by the SDK, because: %s", error)
        call.progress("The code is sent by the SDK in its own way.")
        # Packs or not: the SDK sends every file again whenever one has changed.
        again = based(tree, script) if packed.base else packed
        return _staged({**again.blobs, **ours})


def _with(packed: Packed, ours: Mapping[str, Content]) -> Packed:
    return Packed({**packed.blobs, **ours}, packed.base, packed.table)


def _packed(tree: Tree, script: str, known: Sent) -> Packed:
    if len(tree) <= PLAIN_FILES:
        return plain(tree)
    best: Packed | None = None
    for asset in known.assets:
        base = asset.get("base")
        if not base:
            continue
        size, sha256 = asset["blobs"][base]
        found = edited(tree, script, base, known.table(base), Content(b"", size, sha256))
        if found is not None and (best is None or _new(found) < _new(best)):
            best = found
    return best or based(tree, script)


def _new(packed: Packed) -> int:
    return sum(content.size for name, content in packed.blobs.items() if name != packed.base)


def _there(workspace: Workspace, digest: str) -> str:
    """Id of an asset with that content, or empty. The name that is asked for does not matter."""
    answer = workspace.arm.get(
        f"codes/{uuid.uuid4()}/versions",
        api=http.ARM,
        params={"hash": digest, "hashVersion": HASH_VERSION},
        ok=(200, 404),
        act="look for the code",
    )
    for asset in (answer.json or {}).get("value") or ():
        kept = (asset.get("properties") or {}).get("properties") or {}
        # A service that does not know the question answers with any asset.
        if kept.get("hash_sha256", digest) == digest and asset.get("id"):
            return str(asset["id"])
    return ""


class _NotCopied(AmlTrainError):
    """What an earlier asset has cannot be had from there, and is not here."""


class _Upload:
    """One new asset."""

    def __init__(self, call: ServiceCall, workspace: Workspace, known: Sent) -> None:
        self._call, self._workspace, self._known = call, workspace, known
        self.sent = 0

    def asset(self, packed: Packed, digest: str) -> str:
        name = str(uuid.uuid4())
        path = f"codes/{name}/versions/1"
        answer = self._workspace.arm.post(
            f"{path}/startPendingUpload",
            api=http.ARM,
            json={"pendingUploadType": "TemporaryBlobReference"},
            act="ask where to put the code",
        )
        place = (answer.json or {}).get("blobReferenceForConsumption") or {}
        container = str(place.get("blobUri") or "").rstrip("/")
        signed = str((place.get("credential") or {}).get("sasUri") or "")
        if not container or "?" not in signed:
            raise AmlTrainError("Azure gives no signed address for the code.")
        below, _, signature = signed.partition("?")
        KNOWN.put(container, signature)
        uri = f"{container}/{CODE_FOLDER}"
        self._call.progress(f"Sending the code: {len(packed.blobs)} files.")
        copies = {blob: self._known.where(blob, content) for blob, content in packed.blobs.items()}
        base = packed.blobs.get(packed.base)
        if base is not None and base.source == b"" and not copies[packed.base]:
            raise _NotCopied("The earlier pack is not known any more.")

        def put(blob: str) -> None:
            self._put(f"{below.rstrip('/')}/{CODE_FOLDER}/{blob}", signature, packed.blobs[blob], copies[blob])

        history.all_of(put, sorted(packed.blobs, key=lambda blob: -packed.blobs[blob].size))
        body = {
            "properties": {
                "codeUri": uri,
                "isAnonymous": True,
                "properties": {"hash_sha256": digest, "hash_version": HASH_VERSION, "amltrain.code": "1"},
            }
        }
        made = self._workspace.arm.put(path, api=http.ARM, json=body, act="register the code").json or {}
        asset = str(made.get("id") or f"{self._workspace.arm_id}/{path}")
        self._known.remember(uri, asset, packed)
        log.info("code %s: %d bytes sent of %d", digest[:12], self.sent, sum(c.size for c in packed.blobs.values()))
        return asset

    def _put(self, url: str, signature: str, content: Content, source: str) -> None:
        self._call.check()
        target = self._call.cloud.blob(f"{url}?{signature}")
        if source and self._copied(target, source):
            return
        data = content.read()
        if len(data) != content.size or (not data and content.size):
            raise _NotCopied("The earlier pack cannot be copied.")
        self.sent += len(data)
        if len(data) <= 4 * _BLOCK_BYTES:
            target.put(data)
            testing.hit("azure_during_upload")
            return
        ids = []
        for number, start in enumerate(range(0, len(data), _BLOCK_BYTES)):
            self._call.check()
            self._call.progress(f"Sending the code: {start / len(data):.0%} of {len(data) / 1e6:.0f} MB.")
            ids.append(base64.b64encode(b"%06d" % number).decode())
            target.put(data[start : start + _BLOCK_BYTES], suffix=f"&comp=block&blockid={ids[-1]}")
        listed = "".join(f"<Latest>{id_}</Latest>" for id_ in ids)
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{listed}</BlockList>'
        target.put(body.encode(), suffix="&comp=blocklist")

    def _copied(self, target: http.Blob, source: str) -> bool:
        """Whether the service has copied it from an earlier asset."""
        for signature in self._reading(source):
            try:
                target.send(
                    "PUT",
                    headers={
                        "x-ms-version": http.BLOB,
                        "x-ms-requires-sync": "true",
                        "x-ms-copy-source": f"{source}?{signature}",
                        "Content-Length": "0",
                    },
                    act="copy a file",
                )
                return True
            except AmlTrainError as error:
                log.info("not copied: %s", error)
        return False

    def _reading(self, source: str) -> list[str]:
        """Signatures that may read an earlier asset: of its upload, else of the workspace's storage account."""
        own = KNOWN.get(source)
        if own:
            return [own]
        try:
            account = of_account(self._workspace, urlsplit(source).hostname or "")
        except AmlTrainError as error:
            log.info("no signature to copy by: %s", error)
            return []
        return [account] if account else []


def _staged(blobs: Mapping[str, Content]) -> str:
    """A folder for the SDK to send; removed by who submits."""
    folder = Path(tempfile.mkdtemp(prefix="amltrain-code-"))
    for name, content in blobs.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.read())
    return str(folder)
