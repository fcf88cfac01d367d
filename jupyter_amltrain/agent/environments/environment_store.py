"""Store of environments: folders below the state root, with their locks and markers.

``envs/<key>/`` is complete if it contains the marker; a folder without one was left by a build that was killed.
A run holds a shared lock on ``envs/locks/<key>`` while its process uses the environment; a build and a removal hold
it exclusively.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import sys
from typing import Any, Dict, List, Mapping, Optional

from .. import protocol
from ..file_lock import take_lock, take_shared_lock
from ..protocol import AgentError, read_json, write_json
from .pip_settings import without_password

Json = Dict[str, Any]

ENVS, LOCKS = "envs", "locks"
#: File in a complete environment: specification, packages, seconds, size.
MARKER = "amltrain-environment.json"
#: File with the seconds of the last build, by the name that the user gave the environment.
TIMES = "times.json"
#: Names of which seconds are kept.
MAX_TIMES = 200
#: Characters of a key.
KEY_CHARS = 16
_KEY = re.compile(r"[0-9a-f]{%d}\Z" % KEY_CHARS)
#: Prefixes of folders that no run uses: of an unfinished build, and of an interrupted removal.
_PARTIAL, _REMOVED = ".new-", ".gone-"

#: Fields of a specification with their types; see `check`.
_FIELDS: Dict[str, Any] = {"packages": list, "python": str, "base": str, "conda": str, "label": str, "tool": str}


def check(spec: Mapping[str, Any]) -> Json:
    """Return a specification of an environment with all its fields.

    Fields: ``packages`` (lines of a requirements file; ``-c LINE`` is a constraint), ``python`` (version, empty for
    that of `base`), ``base`` (interpreter of jobs without an environment), ``conda`` (text of a conda file, else
    empty), ``label`` (name that the user gave it), ``tool`` (the submitter's ``uv``, if it is on this machine).

    Raises
    ------
    AgentError
        ``SubmitError`` that names the field.
    """
    for name, value in spec.items():
        if name not in _FIELDS:
            raise AgentError("SubmitError", "Cannot submit the job: unknown field environment.%s." % name)
        lines: List[Any] = value if isinstance(value, list) else [value]
        is_text = all(isinstance(line, str) and "\0" not in line for line in lines)
        if type(value) is not _FIELDS[name] or not is_text:
            raise AgentError("SubmitError", "Cannot submit the job: environment.%s has the wrong type." % name)
        if name == "packages" and any("\n" in line or "\r" in line for line in lines):
            raise AgentError("SubmitError", "Cannot submit the job: a line of environment.packages has a line break.")
    return {name: spec.get(name, kind()) for name, kind in _FIELDS.items()}


def key_of(spec: Mapping[str, Any], path: str = "") -> str:
    """Return the key of a specification: equal for equal contents on equal machines.

    Parameters
    ----------
    path
        Search path for a `base` that is a command.
    """
    parts = {
        "packages": spec["packages"],
        "conda": spec["conda"],
        "python": _python_facts(spec, path),
        "platform": [sys.platform, platform.machine()],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:KEY_CHARS]


def find_base(base: str, path: str = "") -> str:
    """Return the real path of an interpreter: environments of all its virtual environments are the same."""
    found = shutil.which(base, path=path or None)
    return os.path.realpath(found) if found else base


def _python_facts(spec: Mapping[str, Any], path: str) -> Any:
    """Return what decides which Python an environment gets; a range of versions leaves it to the base."""
    if spec["conda"] or re.match(r"[\d.]+\Z", spec["python"]):
        return spec["python"] or None
    facts = _interpreter_facts(spec["base"], path)
    return [spec["python"], *facts] if spec["python"] else facts


def _interpreter_facts(base: str, path: str) -> List[Any]:
    real = find_base(base, path)
    try:
        status = os.stat(real)
    except OSError:
        return [real]
    return [real, status.st_size, int(status.st_mtime)]  # another version may be installed at the same path


class EnvironmentStore:
    """Environments of a state root.

    Parameters
    ----------
    home
        The state root.
    """

    def __init__(self, home: str) -> None:
        self.folder = os.path.join(home, ENVS)

    def path(self, key: str) -> str:
        """Return the folder of an environment."""
        return os.path.join(self.folder, key)

    def partial(self, key: str) -> str:
        """Return the folder in which an environment is built before it gets its name."""
        return os.path.join(self.folder, _PARTIAL + key)

    def marker(self, key: str) -> Optional[Json]:
        """Return the marker of a complete environment; ``None`` without one."""
        try:
            return read_json(os.path.join(self.path(key), MARKER), "Environment")
        except OSError:
            return None

    def usable(self, key: str) -> Optional[Json]:
        """Return the marker of a complete environment whose Python is still there; ``None`` without one."""
        return self.marker(key) if os.access(os.path.join(self.path(key), "bin", "python"), os.X_OK) else None

    def write_marker(self, folder: str, marker: Mapping[str, Any]) -> None:
        """Write the marker of an environment into its folder."""
        write_json(os.path.join(folder, MARKER), marker)

    def lock(self, key: str, exclusive: bool, wait: bool = False) -> Optional[int]:
        """Lock an environment; return the descriptor that holds the lock, ``None`` if another process holds it.

        Raises
        ------
        AgentError
            ``StateError`` when the folder of the locks cannot be written.
        """
        return take_lock(os.path.join(self.folder, LOCKS), key, exclusive, wait)

    def hold(self, key: str) -> Optional[int]:
        """Keep a usable environment from being removed until the descriptor is closed; ``None`` without one."""
        if self.usable(key) is None:
            return None
        handle = take_shared_lock(os.path.join(self.folder, LOCKS), key)
        if handle is None or self.usable(key) is not None:
            return handle
        os.close(handle)
        return None

    def touch(self, key: str) -> None:
        """Record that an environment is used now."""
        try:
            os.utime(os.path.join(self.path(key), MARKER))
        except OSError:  # on a full disk: the time of its last use stays as it was
            pass

    def discard(self, key: str) -> None:
        """Remove what a failed build of an environment that this process has locked has left."""
        shutil.rmtree(self.partial(key), ignore_errors=True)
        if self.marker(key) is None:  # a conda build has no temporary name
            shutil.rmtree(self.path(key), ignore_errors=True)

    def clear_partial(self, key: str) -> None:
        """Remove what killed builds and removals left, except for builds that are running.

        Parameters
        ----------
        key
            Environment that this process has locked; empty for none.
        """
        try:
            names = os.listdir(self.folder)
        except OSError:  # there are no environments yet
            return
        for name in names:
            if name.startswith(_REMOVED):
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
            elif name.startswith(_PARTIAL) or (_KEY.match(name) and self.marker(name) is None):
                other = name[len(_PARTIAL) :] if name.startswith(_PARTIAL) else name
                handle = None if other == key else self.lock(other, exclusive=True)
                if other == key or handle is not None:
                    self.discard(other)
                if handle is not None:
                    os.close(handle)

    def list_keys(self) -> List[str]:
        """Return the keys of complete environments."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []
        return sorted(name for name in names if not name.startswith(".") and self.marker(name) is not None)

    def row(self, key: str) -> Optional[Json]:
        """Return what is known of a complete environment; ``None`` without one."""
        marker = self.marker(key)
        if marker is None:
            return None
        if marker.get("bytes") is None:
            marker["bytes"] = folder_bytes(self.path(key))
        try:
            used = os.stat(os.path.join(self.path(key), MARKER)).st_mtime
        except OSError:
            used = float(marker.get("built") or 0.0)
        handle = self.lock(key, exclusive=True)
        if handle is not None:
            os.close(handle)
        return dict(marker, key=key, path=self.path(key), used=used, in_use=handle is None)

    def delete(self, key: str) -> None:
        """Remove an environment.

        Raises
        ------
        AgentError
            ``CommandError`` when a run uses it.
        """
        handle = self.lock(key, exclusive=True)
        if handle is None:
            raise AgentError(
                "CommandError", "Cannot delete environment %s: a run uses it. Wait for its end, or cancel it." % key
            )
        try:
            trash = os.path.join(self.folder, "%s%s-%s" % (_REMOVED, key, os.urandom(4).hex()))
            os.rename(self.path(key), trash)
        finally:
            os.close(handle)
        shutil.rmtree(trash, ignore_errors=True)

    def last_seconds(self, label: str) -> Optional[float]:
        """Return how long the last build of that name took; ``None`` if it is not known."""
        value = self._times().get(label)
        return float(value) if isinstance(value, (int, float)) else None

    def record_seconds(self, label: str, seconds: float) -> None:
        """Record how long a build took; the newest names are kept."""
        times = self._times()
        times.pop(label, None)
        times[label] = round(seconds, 2)
        for name in list(times)[:-MAX_TIMES]:
            del times[name]
        try:
            write_json(os.path.join(self.folder, TIMES), {"schema": protocol.SCHEMA, "seconds": times})
        except OSError:  # only a remark is lost
            pass

    def _times(self) -> Json:
        try:
            stored = (read_json(os.path.join(self.folder, TIMES), "Environment") or {}).get("seconds")
        except OSError:
            stored = None
        return stored if isinstance(stored, dict) else {}


def folder_bytes(folder: str) -> int:
    """Return the size of the files below a folder; hard links to a cache count fully."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:  # removed meanwhile
                pass
    return total


def installed(folder: str) -> List[str]:
    """Return the packages of an environment as a requirements file lists them, sorted by name."""
    import glob

    lines = []
    for info in glob.glob(os.path.join(glob.escape(folder), "lib", "python3*", "site-packages", "*.dist-info")):
        name, _, version = os.path.basename(info)[: -len(".dist-info")].partition("-")
        name = name.replace("_", "-").lower()
        url = _url_of(info)
        lines.append("%s @ %s" % (name, url) if url else "%s==%s" % (name, version))
    for path in glob.glob(os.path.join(glob.escape(folder), "conda-meta", "*.json")):
        try:
            with open(path, "rb") as file:
                facts = json.loads(file.read().decode())
            lines.append("%s=%s=%s" % (facts["name"], facts["version"], facts.get("build", "")))
        except (OSError, ValueError, KeyError):  # not a package's file
            continue
    return sorted(set(lines))


def _url_of(info: str) -> str:
    """Return the address that a package was installed from (PEP 610); empty for one of an index."""
    try:
        with open(os.path.join(info, "direct_url.json"), "rb") as file:
            facts = json.loads(file.read().decode())
        version_control = facts.get("vcs_info") or {}
        url = str(facts.get("url") or "")
        if version_control.get("commit_id"):
            url = "%s+%s@%s" % (version_control["vcs"], url, version_control["commit_id"])
    except (OSError, ValueError, KeyError, AttributeError):
        return ""
    return without_password(url)
