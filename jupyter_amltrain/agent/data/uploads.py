"""Data that a kernel has sent: once by content, in the cache beside downloaded files (``cache.py``)."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any, Dict, Mapping, Optional

from .. import protocol, testing
from ..protocol import STAGING, AgentError
from .cache import KEY_CHARS, RECORD, DataCache, is_input_name

Json = Dict[str, Any]

_KEY = re.compile(r"[0-9a-f]{%d}\Z" % KEY_CHARS)
_STAGED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}\Z")


def check(uploads: Mapping[str, Any]) -> Json:
    """Return the data of a submitted job by the name of its input.

    Raises
    ------
    AgentError
        ``SubmitError`` that names the input.
    """
    for name, data in uploads.items():
        is_valid = is_input_name(name) and isinstance(data, dict) and _KEY.match(str(data.get("key")))
        if not is_valid or not _is_file_name(data.get("file")):
            raise AgentError("SubmitError", "Cannot submit the job: uploads.%s is not valid." % name[:80])
    return dict(uploads)


def serve(home: str, payload: Mapping[str, Any]) -> Json:
    """Answer a request: ``find`` data by its key, or ``keep`` what was sent to a folder below ``staging/``."""
    key, cache = str(payload["key"]), DataCache(home)
    if not _KEY.match(key):
        raise AgentError("CommandError", "%r is not a key of data." % key[:80])
    if payload["verb"] == "keep":
        _keep(cache, key, home, payload)
    return {"found": use(cache, key) is not None}


def use(cache: DataCache, key: str) -> Optional[Json]:
    """Return the record of data, which is kept for longer now; ``None`` if it is not here."""
    record = cache.record(key)
    if record is not None:
        os.utime(cache.below(key, RECORD))
    return record


def _keep(cache: DataCache, key: str, home: str, payload: Mapping[str, Any]) -> None:
    staged, file = str(payload["staged"]), payload["file"]
    if not _STAGED.match(staged) or not _is_file_name(file):
        raise AgentError("CommandError", "%r is not a folder of data." % staged[:80])
    folder = os.path.join(home, STAGING, staged)
    handle = cache.lock(key, wait=True)
    try:
        if cache.record(key) is None:
            _write_protect(folder)
            cache.make_folder(key)
            shutil.rmtree(cache.below(key, key), ignore_errors=True)  # changed, or without its record
            testing.hit("upload_before_rename")
            os.rename(folder, cache.below(key, key))
            facts = os.stat(cache.below(key, key, file))
            record = {"schema": protocol.SCHEMA, "file": file, "version": key, "bytes": facts.st_size}
            cache.write_record(key, dict(record, mtime_ns=facts.st_mtime_ns))
        else:  # another kernel was faster
            shutil.rmtree(folder, ignore_errors=True)
        cache.sweep(key)
    finally:
        if handle is not None:
            os.close(handle)


def _write_protect(folder: str) -> None:
    """Take the permission to write from all files: runs share them."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            os.chmod(path, os.stat(path).st_mode & 0o500)


def _is_file_name(name: Any) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & {"/", "\0"}
