"""Origin of a job: who submits it, the state of its git repository, and the digests of its local data."""

from __future__ import annotations

import fnmatch
import getpass
import hashlib
import logging
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from jupyter_amltrain.agent.secret_values import looks_secret
from jupyter_amltrain.jobs.file_hash import hash_file
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.provenance import DataDigest, GitState, Provenance

log = logging.getLogger(__name__)

#: Maximum size of the uncommitted changes that a run keeps.
MAX_DIFF_BYTES = 1 << 20
#: Time for a command of git: in a large repository on a slow disk the state stays unknown.
GIT_TIMEOUT_S = 2.0
#: Local data over one of these limits gets no digest: reading it would delay the submit.
MAX_DATA_BYTES, MAX_DATA_FILES = 64 << 20, 2000
#: Files that hold secrets; and those whose changes are never stored, with the outputs of cells.
SECRET_FILES = (".env*", "*.env", "*.pem", "*.key", "*.pfx", "*.p12", "id_rsa*", "id_ed25519*", "id_ecdsa*", ".netrc",
                ".npmrc", ".pypirc", "*credential*", "*secret*", "*password*")  # fmt: skip
_NEVER = (*SECRET_FILES, "*.ipynb")
_is_secret_name = re.compile("|".join(map(fnmatch.translate, SECRET_FILES))).match
_ASSIGNMENT = re.compile(r"[+\- ]\s*[\"']?(?:export\s+)?(?P<name>[\w.-]+)[\"']?\]?\s*[:=]\s*(?P<value>\S.*)")
#: Parts of names that can mark a secret: only such lines are examined, because the check of a line is slow.
_SUSPICIOUS = re.compile(r"pass|pwd|secret|key|token|cred|auth|pat|connection", re.IGNORECASE)
_LEFT_OUT = "(line left out: it looks like a secret)"


class Origin(NamedTuple):
    """Provenance that the submitter knows, and the uncommitted changes of the project as a unified diff."""

    provenance: Provenance = Provenance()
    git_diff: str = ""


def is_secret_file(path: str) -> bool:
    """Whether the name of a file says that it holds secrets."""
    return _is_secret_name(os.path.basename(path).lower()) is not None


def origin_of(spec: JobSpec) -> Origin:
    """Return the origin of a job. Blocks on git and the disk; never raises."""
    git, diff = None, ""
    try:
        git, diff = git_state(spec.code_root or spec.project)
    except Exception:  # a broken repository must not stop a submit
        log.info("git state", exc_info=True)
    inputs = {}
    for name, data in spec.inputs.items():
        if data.local and data.path and "${{" not in data.path:
            try:
                inputs[name] = data_digest(data.path)
            except OSError:  # the target reports missing data
                continue
    return Origin(Provenance(user=_user(), host=socket.gethostname(), git=git, inputs=inputs), diff)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without an entry, as in containers
        return str(os.getuid()) if hasattr(os, "getuid") else ""


def git_state(folder: str) -> tuple[GitState | None, str]:
    """Return the state of the repository of a folder, and the uncommitted changes of that folder.

    ``None`` outside of a repository, without git, and if git takes longer than :data:`GIT_TIMEOUT_S`.
    """
    if not folder or not _is_in_repository(folder) or shutil.which("git") is None:
        return None, ""
    # All at once: each process takes some milliseconds, for which the submit waits.
    status, remote, prefix = _git_all(
        folder,
        ("status", "--porcelain=v2", "--branch", "--untracked-files=no", "--", "."),
        ("ls-remote", "--get-url"),
        ("rev-parse", "--show-prefix"),
    )
    if status is None:
        return None, ""
    header = dict(re.findall(r"^# branch\.(oid|head) (.*)$", status, re.MULTILINE))
    commit = header.get("oid", "")
    commit = "" if commit == "(initial)" else commit
    branch = header.get("head", "")
    remote = (remote or "").strip()
    dirty = any(line and not line.startswith("#") for line in status.splitlines())
    diff, cut = _diff(folder) if dirty and commit else ("", False)
    state = GitState(
        commit=commit,
        branch="" if branch == "(detached)" else branch,
        remote="" if remote == "origin" else without_credentials(remote),
        dirty=dirty,
        prefix=(prefix or "").rstrip("\n"),
        diff_bytes=len(diff.encode()),
        diff_cut=cut,
    )
    return state, diff


def _is_in_repository(folder: str) -> bool:
    """Return whether git can find a repository from a folder: asking git itself takes milliseconds of each submit."""
    path = Path(folder).absolute()
    return any((one / ".git").exists() for one in (path, *path.parents))


def has_commit(folder: str, commit: str) -> bool:
    """Return whether the repository of a folder contains a commit; False outside of a repository. Blocks on git."""
    if not re.fullmatch(r"[0-9a-f]{7,64}", commit) or not os.path.isdir(folder) or shutil.which("git") is None:
        return False
    return _git(folder, "cat-file", "-e", f"{commit}^{{commit}}") is not None


def top_folder(folder: str) -> str:
    """Return the top folder of the repository of a folder; empty outside of one. Blocks on git."""
    return (_git(folder, "rev-parse", "--show-toplevel") or "").rstrip("\n")


def without_credentials(url: str) -> str:
    """Return the address of a remote without user name, password and query."""
    return re.sub(r"//[^/]*@", "//", url.partition("?")[0])[:1000]


def _environ() -> dict[str, str]:
    """Return an environment in which git takes no lock and prompts for nothing."""
    own = {
        name: value for name, value in os.environ.items() if name not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    }
    return {**own, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def _git(folder: str, *arguments: str) -> str | None:
    """Return the output of a command of git; ``None`` if it failed."""
    return _git_all(folder, arguments)[0]


def _git_all(folder: str, *commands: Sequence[str]) -> list[str | None]:
    """Run commands of git at the same time; return the output of each, ``None`` for one that failed."""
    environ, processes = _environ(), list[subprocess.Popen[bytes]]()
    outputs: list[str | None] = [None] * len(commands)
    try:
        for command in commands:
            processes.append(
                subprocess.Popen(
                    ["git", "-C", folder, *command],
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            )
        end = time.monotonic() + GIT_TIMEOUT_S
        for number, process in enumerate(processes):
            data = process.communicate(timeout=max(0.0, end - time.monotonic()))[0]
            outputs[number] = data.decode("utf-8", "replace") if process.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired):
        pass  # what has no output yet is unknown
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
    return outputs


def _diff(folder: str) -> tuple[str, bool]:
    """Return the uncommitted changes of the folder, and whether some are left out because of their size."""
    excluded = [f":(exclude,icase,glob)**/{pattern}" for pattern in _NEVER]
    text = _git(
        folder, "diff", "HEAD", "--relative", "--no-ext-diff", "--no-textconv", "--no-color", "--", ".", *excluded
    )
    if not text:
        return "", text is None
    lines = list[str]()
    size, in_key = 0, False
    for line in text.splitlines(keepends=True):
        in_key = "-----BEGIN" in line or (in_key and "-----END" not in line and line[:1] in "+- ")
        if in_key or "-----END" in line or _is_secret(line):
            line = f"{line[:1]}{_LEFT_OUT}\n"
        size += len(line.encode())
        if size > MAX_DIFF_BYTES:
            return "".join(lines), True
        lines.append(line)
    return "".join(lines), False


def _is_secret(line: str) -> bool:
    if line[:1] not in "+- " or line.startswith(("+++ ", "--- ")):
        return False
    if looks_secret("", line):
        return True
    found = _ASSIGNMENT.match(line) if _SUSPICIOUS.search(line) else None
    if found is None:
        return False
    value = found["value"].strip(" \t\"',")
    return bool(value) and looks_secret(found["name"], value, env=True)


def data_digest(path: str) -> DataDigest:
    """Return the digest of a local file or folder, or only its size if it is large. Blocks on the disk.

    Raises
    ------
    OSError
        The data does not exist or cannot be read.
    """
    whole, files, size = hashlib.sha256(), 0, 0
    is_known = True
    for name, file in _files(path):
        files += 1
        size += os.stat(file).st_size
        if files > 10 * MAX_DATA_FILES:  # counting would take long, too
            break
        is_known = is_known and size <= MAX_DATA_BYTES and files <= MAX_DATA_FILES
        if is_known:
            whole.update(name.encode("utf-8", "surrogateescape") + b"\0" + hash_file(file).sha256)
    return DataDigest(path=path, sha256=whole.hexdigest() if is_known and files else "", files=files, bytes=size)


def _files(path: str) -> Iterator[tuple[str, str]]:
    """Yield name and path of a file, or of the regular files below a folder in a fixed order."""
    if not os.path.isdir(path):
        os.stat(path)
        yield os.path.basename(path), path
        return
    for parent, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            file = os.path.join(parent, name)
            if os.path.isfile(file):
                yield os.path.relpath(file, path), file
