"""Code that a job takes along: never sent twice.

The service finds an asset by its content's hash, as the SDK does (``GET codes/NAME/versions?hash=...``). New
content goes by the signed address of ``startPendingUpload``, so that no right on the storage account is
needed; what an earlier asset has is copied there on the service's side. Where any of that is refused, the SDK
sends the files in its own way.
"""

from __future__ import annotations

import base64
import logging
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from jupyter_amltrain.agent import failpoints
from jupyter_amltrain.backends.azureml.service import code_tree, history, rest, signatures
from jupyter_amltrain.backends.azureml.service.code_tree import Content, Packed
from jupyter_amltrain.backends.azureml.service.sent_code import Sent
from jupyter_amltrain.errors import AmlTrainError, SubmitError, TargetUnreachable

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Workspace
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

log = logging.getLogger("amltrain.azure")

#: The SDK's word for how the hash was made; ours is only compared with ours.
HASH_VERSION = "202208"
#: A code asset is a folder of its container: so in every recording, in the API's example and in what the SDK sends.
CODE_FOLDER = "code"
#: Larger files go in blocks of this (bytes).
_BLOCK = 16 << 20


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
    from jupyter_amltrain.transports.agent_zipapp import build

    agent = code_tree.of_bytes(build(call.root).read_bytes())
    job = code_tree.of_json(job_file)
    whole = code_tree.digest_of(digest, (agent, job))
    known = Sent(call.root, workspace.name)
    if found := _there(workspace, whole):
        log.info("code %s is there: %s", whole[:12], found.rpartition("/codes/")[2])
        return found
    tree = code_tree.tree_of(files)
    if (now := code_tree.snapshot_of(tree)) != digest:
        # Somebody has saved a file since: under the snapshot's name it would be found for what it is not.
        whole = code_tree.digest_of(now, (agent, job))
        if found := _there(workspace, whole):
            return found
    ours = {code_tree.AGENT: agent, code_tree.JOB: job}
    packed = _packed(tree, script, known)
    upload = _Upload(call, workspace, known)
    try:
        try:
            return upload.asset(_with(packed, ours), whole)
        except _NotCopied as error:
            log.info("%s", error)
            packed = code_tree.based(tree, script)
            return upload.asset(_with(packed, ours), whole)
    except (TargetUnreachable, SubmitError):  # the SDK would try for minutes what we have just tried
        raise
    except AmlTrainError as error:
        log.warning("the code is sent by the SDK, because: %s", error)
        call.progress("The code is sent by the SDK in its own way.")
        # Packs or not: the SDK sends every file again whenever one has changed.
        again = code_tree.based(tree, script) if packed.base else packed
        return _staged({**again.blobs, **ours})


def _with(packed: Packed, ours: Mapping[str, Content]) -> Packed:
    return Packed({**packed.blobs, **ours}, packed.base, packed.table)


def _packed(tree: code_tree.Tree, script: str, known: Sent) -> Packed:
    if len(tree) <= code_tree.PLAIN_FILES:
        return code_tree.plain(tree)
    best: Packed | None = None
    for asset in known.assets:
        base = asset.get("base")
        if not base:
            continue
        size, sha256 = asset["blobs"][base]
        found = code_tree.edited(tree, script, base, known.table(base), Content(b"", size, sha256))
        if found is not None and (best is None or _new(found) < _new(best)):
            best = found
    return best or code_tree.based(tree, script)


def _new(packed: Packed) -> int:
    return sum(content.size for name, content in packed.blobs.items() if name != packed.base)


def _there(workspace: Workspace, digest: str) -> str:
    """Id of an asset with that content, or empty. The name that is asked for does not matter."""
    answer = workspace.arm.get(
        f"codes/{uuid.uuid4()}/versions",
        api=rest.ARM,
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
            api=rest.ARM,
            json={"pendingUploadType": "TemporaryBlobReference"},
            act="ask where to put the code",
        )
        place = (answer.json or {}).get("blobReferenceForConsumption") or {}
        container = str(place.get("blobUri") or "").rstrip("/")
        signed = str((place.get("credential") or {}).get("sasUri") or "")
        if not container or "?" not in signed:
            raise AmlTrainError("Azure gives no signed address for the code.")
        below, _, signature = signed.partition("?")
        signatures.KNOWN.put(container, signature)
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
        made = self._workspace.arm.put(path, api=rest.ARM, json=body, act="register the code").json or {}
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
        if len(data) <= 4 * _BLOCK:
            target.put(data)
            failpoints.hit("azure_during_upload")
            return
        ids = []
        for number, start in enumerate(range(0, len(data), _BLOCK)):
            self._call.check()
            self._call.progress(f"Sending the code: {start / len(data):.0%} of {len(data) / 1e6:.0f} MB.")
            ids.append(base64.b64encode(b"%06d" % number).decode())
            target.put(data[start : start + _BLOCK], suffix=f"&comp=block&blockid={ids[-1]}")
        listed = "".join(f"<Latest>{id_}</Latest>" for id_ in ids)
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{listed}</BlockList>'
        target.put(body.encode(), suffix="&comp=blocklist")

    def _copied(self, target: rest.Blob, source: str) -> bool:
        """Whether the service has copied it from an earlier asset."""
        for signature in self._reading(source):
            try:
                target.send(
                    "PUT",
                    headers={
                        "x-ms-version": rest.BLOB,
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
        own = signatures.KNOWN.get(source)
        if own:
            return [own]
        try:
            account = signatures.of_account(self._workspace, urlsplit(source).hostname or "")
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
