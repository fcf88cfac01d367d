"""Upload of a job's code to the workspace's storage; only changed files are sent."""

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
from jupyter_amltrain.azure.service import history, http
from jupyter_amltrain.errors import AmlTrainError, StateError, SubmitError, TargetUnreachable
from jupyter_amltrain.state_dir import locked, read_json, write_json

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.cloud import Workspace
    from jupyter_amltrain.azure.service.operations import ServiceCall


class Signatures:
    """Cache of signatures (SAS) by URL prefix. Secrets: kept in memory only, for less than their hour."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, tuple[float, str]] = {}

    def put(self, begin: str, signature: str) -> None:
        """Store the signature for all URLs that start with `begin`."""
        with self._lock:
            self._entries[begin] = time.time() + 3000, signature

    def get(self, url: str) -> str:
        """Return a signature for a URL; empty if there is none."""
        with self._lock:
            now = time.time()
            self._entries = {begin: pair for begin, pair in self._entries.items() if pair[0] > now}
            matches = (
                text for begin, (_, text) in self._entries.items() if url == begin or url.startswith(begin + "/")
            )
            return next(matches, "")


#: The signatures of this process.
KNOWN = Signatures()


def account_signature(workspace: Workspace, host: str) -> str:
    """Return a signature of the workspace's storage account.

    Recorded: ``secretsType`` ``Sas``, a token with a leading ``?``.
    """
    key = f"account:{workspace.name}"
    if cached := KNOWN.get(key):
        return cached
    store = "datastores/workspaceblobstore"
    facts = (workspace.arm.get(store, api=http.ARM, act="read the workspace's storage").json or {})["properties"]
    if not host.startswith(f"{facts.get('accountName')}."):
        return ""
    secret = workspace.arm.post(
        f"{store}/listSecrets",
        api=http.ARM_PREVIEW,
        json={"expirableSecret": True, "expireAfterHours": 1},
        act="sign a URL of the workspace's storage",
    ).json
    token = str((secret or {}).get("sasToken") or "").lstrip("?")
    if token:
        KNOWN.put(key, token)
    return token


#: More files than this are sent as a pack: one request instead of one per file.
PLAIN_FILES = 20
OURS = ".amltrain"
AGENT, JOB, MANIFEST = f"{OURS}/agent.pyz", f"{OURS}/job.json", f"{OURS}/manifest.json"
#: An edit that holds a larger share of the tree than this is replaced by a new base.
_EDIT_SHARE = 0.25


class Content(NamedTuple):
    """One file of a tree."""

    source: str | bytes  #: local path, or the bytes
    size: int
    sha256: str
    executable: bool = False

    def read(self) -> bytes:
        """Return the bytes.

        Raises
        ------
        SubmitError
            The file has changed and no longer matches :attr:`sha256`.
        """
        if isinstance(self.source, bytes):
            return self.source
        try:
            data = Path(self.source).read_bytes()
        except OSError as error:
            raise _unreadable(self.source, error) from error
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise SubmitError(f"{self.source} changed during the upload.", hint="Submit again.")
        return data


Tree = Mapping[str, Content]


def hash_files(files: Mapping[str, str | bytes]) -> dict[str, Content]:
    """Return the files with their digests.

    Raises
    ------
    SubmitError
        A file can no longer be read.
    """
    tree = {}
    for name in sorted(files):
        content = files[name]
        try:
            tree[name] = _content(content)
        except OSError as error:
            raise _unreadable(content, error) from error
    return tree


def _unreadable(path: str | bytes, error: OSError) -> SubmitError:
    return SubmitError(f"Cannot read {path!r}: {error.strerror or error}.", hint="Submit again.")


def snapshot_digest(tree: Tree) -> str:
    """Return the digest of a snapshot (:func:`jupyter_amltrain.jobs.snapshot.take`) of these files."""
    digest = hashlib.sha256()
    for name in sorted(tree):
        label = name.encode()
        digest.update(b"%d %s %d " % (len(label), label, tree[name].executable) + bytes.fromhex(tree[name].sha256))
    return digest.hexdigest()


def content_of_bytes(data: bytes) -> Content:
    """Return content that is not a local file."""
    return Content(data, len(data), hashlib.sha256(data).hexdigest())


def content_of_json(value: Any) -> Content:
    """Return JSON content; equal values give equal bytes."""
    return content_of_bytes(json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n")


def code_asset_digest(snapshot: str, contents: Iterable[Content]) -> str:
    """Return the hash that identifies a code asset: of the user's files and amltrain's, independent of packs."""
    digest = hashlib.sha256(b"amltrain code 1\n" + snapshot.encode())
    for content in contents:
        digest.update(b"\n" + content.sha256.encode())
    return digest.hexdigest()


class Packed(NamedTuple):
    """A tree ready to be sent: blobs by name, and the data that later edits need."""

    blobs: dict[str, Content]
    base: str  #: name of the base pack; empty for a tree without packs
    table: dict[str, str]  #: file in the base -> sha256, with a trailing ``+`` for executables


def pack_none(tree: Tree) -> Packed:
    """Return a tree without packs: each file is a blob."""
    return Packed(dict(tree), "", {})


def pack_base(tree: Tree, script: str) -> Packed:
    """Return a tree with one pack of all files except the script."""
    rest = {name: content for name, content in tree.items() if name != script}
    pack = content_of_bytes(tar_gz(rest))
    name = f"{OURS}/base-{pack.sha256[:16]}.tar.gz"
    manifest = _manifest([name], [])
    blobs = {script: tree[script], MANIFEST: manifest, name: pack}
    return Packed(blobs, name, {file: digest_and_mode(content) for file, content in rest.items()})


def pack_edit(tree: Tree, script: str, base: str, table: Mapping[str, str], pack: Content) -> Packed | None:
    """Return the difference from a base that the service has, as a second pack; ``None`` if it is too large.

    Parameters
    ----------
    base, table, pack
        Name, files and content (whose bytes need not be local) of the base.
    """
    rest = {name: content for name, content in tree.items() if name != script}
    new = {name: content for name, content in rest.items() if table.get(name) != digest_and_mode(content)}
    size = sum(content.size for content in rest.values())
    if sum(content.size for content in new.values()) > _EDIT_SHARE * size + 4096:
        return None
    blobs = {script: tree[script], base: pack}
    packs = [base]
    if new:
        edit = content_of_bytes(tar_gz(new))
        packs.append(f"{OURS}/edit-{edit.sha256[:16]}.tar.gz")
        blobs[packs[-1]] = edit
    removed = sorted(table.keys() - rest.keys())
    blobs[MANIFEST] = _manifest(packs, removed)
    return Packed(blobs, base, dict(table))


def _manifest(packs: list[str], removed: list[str]) -> Content:
    # The names of the packs contain their digests.
    digest = hashlib.sha256("\n".join([*packs, "", *removed]).encode()).hexdigest()[:16]
    return content_of_json({"schema": 1, "digest": digest, "packs": packs, "removed": removed})


def digest_and_mode(content: Content) -> str:
    """Return digest and mode of a file."""
    return content.sha256 + ("+" if content.executable else "")


def tar_gz(tree: Tree) -> bytes:
    """Return a tar.gz; equal trees give equal bytes."""
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
        return content_of_bytes(content)
    digest, size = hashlib.sha256(), 0
    with open(content, "rb", buffering=0) as file:
        executable = bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR)
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return Content(content, size, digest.hexdigest(), executable)


log = logging.getLogger("amltrain.azure")

#: Maximum number of earlier assets to remember.
_MAX_RECENT = 12
#: Synchronous server-side copies are limited to files of 256 MiB (``Copy Blob From URL``).
_MAX_COPY_BYTES = 256 << 20


class UploadHistory:
    """Record of earlier uploads to a workspace, in a small file of the state root; contains no signatures."""

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
        """Return the URL of the same content under the same name in an earlier asset; empty if there is none."""
        if content.size > _MAX_COPY_BYTES:
            return ""
        for asset in self.assets:
            if (asset.get("blobs") or {}).get(blob, ("", ""))[1] == content.sha256:
                return f"{asset['uri']}/{blob}"
        return ""

    def table(self, base: str) -> dict[str, str]:
        """Return the files of a base pack; empty if unknown, in which case no edit can use it."""
        path = self._folder / f"{base.rpartition('/')[2]}.json"
        try:
            return dict(read_json(path).get("files") or {}) if path.exists() else {}
        except (StateError, OSError, ValueError):
            return {}

    def remember(self, uri: str, asset: str, packed: Packed) -> None:
        """Record an asset; if the state root cannot be written, the next upload is larger."""
        blobs = {name: [content.size, content.sha256] for name, content in packed.blobs.items()}
        row = {"id": asset, "uri": uri, "time": time.time(), "base": packed.base, "blobs": blobs}

        def change() -> None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self._folder / "sent.lock", 10.0):
                assets = UploadHistory(self._folder.parent.parent, self._folder.name).assets
                if packed.base:
                    name = packed.base.rpartition("/")[2]
                    write_json(self._folder / f"{name}.json", {"schema": 1, "files": packed.table})
                write_json(self._file, {"schema": 1, "assets": [row, *assets][:_MAX_RECENT]})

        _log_errors(change)


def _log_errors(function: Callable[[], None]) -> None:
    try:
        function()
    except (OSError, AmlTrainError) as error:
        log.warning("%s", error)


#: The SDK's version of the hash algorithm; our hashes are compared only with each other.
HASH_VERSION = "202208"
#: Folder of a code asset in its container, as in every recording, the API's example and the SDK's requests.
CODE_FOLDER = "code"
#: Block size of larger files, bytes.
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
    """Return the id of a code asset with these files; a local folder if only the SDK can upload them.

    Parameters
    ----------
    script
        Name of the script, which is never packed.
    digest
        Digest of the snapshot.
    job_file
        Content of ``.amltrain/job.json``.
    """
    from jupyter_amltrain.backends.agent_zipapp import build

    agent = content_of_bytes(build(call.root).read_bytes())
    job = content_of_json(job_file)
    whole = code_asset_digest(digest, (agent, job))
    uploads = UploadHistory(call.root, workspace.name)
    if existing := _find_asset(workspace, whole):
        log.info("code %s exists already: %s", whole[:12], existing.rpartition("/codes/")[2])
        return existing
    tree = hash_files(files)
    if (current := snapshot_digest(tree)) != digest:
        # A file was saved since the snapshot: under the snapshot's digest the asset would have the wrong content.
        whole = code_asset_digest(current, (agent, job))
        if existing := _find_asset(workspace, whole):
            return existing
    ours = {AGENT: agent, JOB: job}
    packed = _packed(tree, script, uploads)
    upload = _Upload(call, workspace, uploads)
    try:
        try:
            return upload.asset(_with(packed, ours), whole)
        except _NotCopied as error:
            log.info("%s", error)
            packed = pack_base(tree, script)
            return upload.asset(_with(packed, ours), whole)
    except (TargetUnreachable, SubmitError):  # the SDK would retry the same for minutes
        raise
    except AmlTrainError as error:
        log.warning("using the SDK to upload the code, because: %s", error)
        call.progress("Uploading the code with the Azure SDK instead.")
        # With or without packs, the SDK sends every file again whenever one has changed.
        repacked = pack_base(tree, script) if packed.base else packed
        return _stage({**repacked.blobs, **ours})


def _with(packed: Packed, ours: Mapping[str, Content]) -> Packed:
    return Packed({**packed.blobs, **ours}, packed.base, packed.table)


def _packed(tree: Tree, script: str, uploads: UploadHistory) -> Packed:
    if len(tree) <= PLAIN_FILES:
        return pack_none(tree)
    best: Packed | None = None
    for asset in uploads.assets:
        base = asset.get("base")
        if not base:
            continue
        size, sha256 = asset["blobs"][base]
        candidate = pack_edit(tree, script, base, uploads.table(base), Content(b"", size, sha256))
        if candidate is not None and (best is None or _bytes_to_send(candidate) < _bytes_to_send(best)):
            best = candidate
    return best or pack_base(tree, script)


def _bytes_to_send(packed: Packed) -> int:
    return sum(content.size for name, content in packed.blobs.items() if name != packed.base)


def _find_asset(workspace: Workspace, digest: str) -> str:
    """Return the id of an existing asset with that hash, or an empty string. The name in the path does not matter."""
    answer = workspace.arm.get(
        f"codes/{uuid.uuid4()}/versions",
        api=http.ARM,
        params={"hash": digest, "hashVersion": HASH_VERSION},
        ok=(200, 404),
        act="find the code",
    )
    for asset in (answer.json or {}).get("value") or ():
        properties = (asset.get("properties") or {}).get("properties") or {}
        # A service that does not support the query returns any asset.
        if properties.get("hash_sha256", digest) == digest and asset.get("id"):
            return str(asset["id"])
    return ""


class _NotCopied(AmlTrainError):
    """Content of an earlier asset can neither be copied nor read locally."""


class _Upload:
    """Upload of one new code asset."""

    def __init__(self, call: ServiceCall, workspace: Workspace, uploads: UploadHistory) -> None:
        self._call, self._workspace, self._uploads = call, workspace, uploads
        self.sent = 0

    def asset(self, packed: Packed, digest: str) -> str:
        name = str(uuid.uuid4())
        path = f"codes/{name}/versions/1"
        answer = self._workspace.arm.post(
            f"{path}/startPendingUpload",
            api=http.ARM,
            json={"pendingUploadType": "TemporaryBlobReference"},
            act="create an upload location for the code",
        )
        reference = (answer.json or {}).get("blobReferenceForConsumption") or {}
        container = str(reference.get("blobUri") or "").rstrip("/")
        signed = str((reference.get("credential") or {}).get("sasUri") or "")
        if not container or "?" not in signed:
            raise AmlTrainError("Cannot upload the code: Azure returned no signed URL.")
        below, _, signature = signed.partition("?")
        KNOWN.put(container, signature)
        uri = f"{container}/{CODE_FOLDER}"
        self._call.progress(f"Sending the code: {len(packed.blobs)} files.")
        copies = {blob: self._uploads.where(blob, content) for blob, content in packed.blobs.items()}
        base = packed.blobs.get(packed.base)
        if base is not None and base.source == b"" and not copies[packed.base]:
            raise _NotCopied("The previous upload no longer exists.")

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
        response = self._workspace.arm.put(path, api=http.ARM, json=body, act="register the code").json or {}
        asset = str(response.get("id") or f"{self._workspace.arm_id}/{path}")
        self._uploads.remember(uri, asset, packed)
        log.info("code %s: %d bytes sent of %d", digest[:12], self.sent, sum(c.size for c in packed.blobs.values()))
        return asset

    def _put(self, url: str, signature: str, content: Content, source: str) -> None:
        self._call.check()
        target = self._call.cloud.blob(f"{url}?{signature}")
        if source and self._copy(target, source):
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

    def _copy(self, target: http.Blob, source: str) -> bool:
        """Copy a blob from an earlier asset on the service's side; returns whether that succeeded."""
        for signature in self._read_signatures(source):
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

    def _read_signatures(self, source: str) -> list[str]:
        """Return signatures for an earlier asset: that of its upload, otherwise of the storage account."""
        signature = KNOWN.get(source)
        if signature:
            return [signature]
        try:
            account = account_signature(self._workspace, urlsplit(source).hostname or "")
        except AmlTrainError as error:
            log.info("no signature to copy with: %s", error)
            return []
        return [account] if account else []


def _stage(blobs: Mapping[str, Content]) -> str:
    """Write the blobs to a temporary folder for the SDK; the submitting function removes it."""
    folder = Path(tempfile.mkdtemp(prefix="amltrain-code-"))
    for name, content in blobs.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.read())
    return str(folder)
