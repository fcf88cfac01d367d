"""Incremental reads of a job's files by HTTP range requests, and the merged log."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_amltrain.azure import errors
from jupyter_amltrain.azure.service.mirror_files import OVERLAP, MirrorFiles
from jupyter_amltrain.errors import AmlTrainError

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.operations import ServiceCall

#: Bytes per request.
_PART_BYTES = 4 << 20


class FileDelta(NamedTuple):
    """New content of one file.

    Attributes
    ----------
    data
        New bytes.
    restarted
        The file was replaced since the last read: `data` starts at its beginning.
    more
        The file has more data.
    created_at
        Creation time of the file at the storage service.
    """

    data: bytes = b""
    restarted: bool = False
    more: bool = False
    created_at: str = ""


class Reader:
    """Reads files of one job.

    Parameters
    ----------
    address
        Returns the signed URL of a file. Takes the name and the expired URL to replace, if any. Returns an empty
        string for a file that does not exist.
    """

    def __init__(self, call: ServiceCall, address: Callable[[str, str], str]) -> None:
        self._call, self._address = call, address

    def new(self, name: str, known: dict[str, Any], restarted_job: bool = False) -> FileDelta:
        """Read the content after `known` (see :attr:`MirrorFiles.remote`), which is not modified.

        Parameters
        ----------
        restarted_job
            The service has restarted the job: a file with a new creation time is a different file, even if it
            starts with the same bytes. (Otherwise it may be a file that is rewritten on every change.)
        """
        offset, tail = int(known.get("offset") or 0), bytes.fromhex(known.get("tail") or "")
        answer = self._get(name, offset - len(tail), offset + _PART_BYTES)
        if answer is None:
            return FileDelta()
        data, total, made = answer
        replaced = bool(
            restarted_job and offset and made and made != known.get("made", made) and not known.get("rewritten")
        )
        if replaced or not data.startswith(tail) or total < offset:
            answer = self._get(name, 0, _PART_BYTES)
            if answer is None or not answer[0]:
                return FileDelta()  # it is being rewritten
            return FileDelta(answer[0], True, answer[1] > len(answer[0]), answer[2])
        new = data[len(tail) :]
        return FileDelta(new, False, total > offset + len(new), made)

    def whole(self, name: str, known: dict[str, Any]) -> bytes | None:
        """Read a small file that is replaced as a whole; ``None`` if unchanged. Stores its ETag in `known`."""
        url = ""
        for is_retry in (False, True):
            url = self._address(name, url)
            if not url:
                return None
            headers = {"x-ms-version": "2021-08-06"}
            if known.get("etag"):
                headers["If-None-Match"] = known["etag"]
            try:
                answer = self._call.cloud.blob(url).send("GET", headers=headers, ok=(200, 304), act="read a file")
            except AmlTrainError as error:
                if errors.details_of(error).status == 403 and not is_retry:
                    continue
                if errors.details_of(error).status == 404:
                    return None
                raise
            if answer.status == 304:
                return None
            known["etag"] = answer.headers.get("etag", "")
            return answer.bytes
        return None

    def _get(self, name: str, start: int, end: int) -> tuple[bytes, int, str] | None:
        """Return bytes, total size and creation time; ``None`` for a file that does not exist."""
        url = ""
        for is_retry in (False, True):
            url = self._address(name, url)
            if not url:
                return None
            try:
                answer = self._call.cloud.blob(url).get(start, end)
            except AmlTrainError as error:
                status = errors.details_of(error).status
                if status == 403 and not is_retry:
                    continue  # the signature has expired
                if status == 404:
                    return None
                raise
            content_range, made = answer.headers.get("content-range", ""), answer.headers.get("x-ms-creation-time", "")
            if answer.status == 416:
                return b"", _total(content_range, 0), made
            if answer.status == 200:  # a proxy ignored the range
                return answer.bytes[start:end], len(answer.bytes), made
            return answer.bytes, _total(content_range, start + len(answer.bytes)), made
        return None


def advance_position(known: dict[str, Any], data: bytes, restarted: bool, made: str = "") -> None:
    """Advance the read position in `known` past `data`."""
    if made and not restarted and known.get("made", made) != made:
        known["rewritten"] = True
    if made:
        known["made"] = made
    previous = b"" if restarted else bytes.fromhex(known.get("tail") or "")
    known["offset"] = (0 if restarted else int(known.get("offset") or 0)) + len(data)
    known["tail"] = (previous + data)[-OVERLAP:].hex()


def _total(text: str, default: int) -> int:
    """``bytes 0-9/200`` or ``bytes */200`` -> 200."""
    size = text.rpartition("/")[2]
    return int(size) if size.isdigit() else default


MERGED = "log/rank-0.txt"
_RANK = re.compile(r"user_logs/std_log_process_0*(\d+)(_\w+)?\.txt")
#: Recorded: ``azureml-logs/20_image_build_log.txt``.
_RETRIED = re.compile(r"retry_0*(\d+)/(user_logs/.+)")
_BUILD = re.compile(r"azureml-logs/\d+_image_build_log\.txt")
#: Logs of a parent job or a Spark driver itself: the SDK's ``PIPELINE_JOB_LOG_PATTERN`` and
#: ``SWEEP_JOB_LOG_PATTERN``, and recorded: ``logs/azureml/stdoutlogs.txt``, ``stderrlogs.txt``.
_PARENT_LOGS = re.compile(r"logs/azureml/.+|azureml-logs/hyperdrive\.txt")
#: An unfinished line is shown after this many bytes.
_MAX_LINE_BYTES = 64 * 1024
_MARK = "amltrain: --- {} ---\n"


def log_files(names: Iterable[str], job_type: str = "command") -> list[str]:
    """Return the files that make up the log, in display order.

    Parameters
    ----------
    job_type
        Type of the job; jobs other than commands have additional logs.
    """
    include_own = job_type != "command"
    selected = [
        name
        for name in names
        if _BUILD.fullmatch(name) or name.startswith("user_logs/") or (include_own and _PARENT_LOGS.fullmatch(name))
    ]
    return sorted(selected, key=_order)


def attempt_logs(names: Iterable[str]) -> dict[int, dict[str, str]]:
    """Return the logs of ended attempts, if the service keeps them: attempt -> original name -> current name."""
    attempts: dict[int, dict[str, str]] = {}
    for name in sorted(names):
        if match := _RETRIED.fullmatch(name):
            attempts.setdefault(int(match[1]), {})[match[2]] = name
    return attempts


def end_attempt(mirror: MirrorFiles, attempt: int) -> None:
    """Mark an attempt as ended: the next attempt starts the user logs from the beginning."""
    if int(mirror.facts.get("attempt") or 1) > attempt:
        return
    _note_restart(mirror, attempt + 1)
    for name, position in mirror.remote.items():
        if name.startswith("user_logs/"):
            position.update(offset=0, tail="", held="")


def is_build(name: str) -> bool:
    """Return whether a file is the build log of the environment's image."""
    return _BUILD.fullmatch(name) is not None


def _order(name: str) -> tuple[int, int, str]:
    if is_build(name):
        return 0, 0, name
    rank = _RANK.fullmatch(name)
    return (1, int(rank[1]), name) if rank else (1 if name == "user_logs/std_log.txt" else 2, 0, name)


def label(name: str) -> str:
    """Return the prefix for each line of a file; empty for the log of a single-process job."""
    if name in ("user_logs/std_log.txt", "logs/azureml/executionlogs.txt", "azureml-logs/hyperdrive.txt"):
        return ""
    rank = _RANK.fullmatch(name)
    if rank:
        return f"[rank {rank[1]}{(rank[2] or '').replace('_', ' ')}] "
    return f"[{name.removeprefix('user_logs/').removeprefix('logs/azureml/')}] "


def contains(mirror: MirrorFiles, text: bytes) -> bool:
    """Return whether the merged log has `text`, however long it is."""
    path = mirror.folder / MERGED
    if not path.is_file() or not path.stat().st_size:
        return False
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text) >= 0


def append_logs(
    mirror: MirrorFiles, deltas: Mapping[str, FileDelta], *, attempt: int, ended: bool, running: bool = True
) -> None:
    """Append new content to the merged log.

    Parameters
    ----------
    deltas
        New content by file name, in the order of :func:`log_files`.
    attempt
        Number of the service's current attempt, from 1.
    ended
        Nothing will follow: unfinished lines are shown too.
    running
        The attempt is running; before that, new content belongs to the previous attempt.
    """
    current = int(mirror.facts.get("attempt") or 1)
    user_logs = [name for name in deltas if not is_build(name)]
    started = bool(mirror.facts.get("begun"))
    if any(deltas[name].restarted for name in user_logs):
        if attempt > current or attempt == 1:  # a service that does not count attempts returns 1
            _note_restart(mirror, max(attempt, current + 1))
    elif attempt > current and not started:
        mirror.facts["attempt"] = attempt
    elif attempt > current and running and any(deltas[name].data for name in user_logs):
        _note_restart(mirror, attempt)
    for name, delta in deltas.items():
        position = mirror.read_position(name)
        if is_build(name):
            if delta.data and not started:
                if not position["offset"]:
                    append_note(mirror, "building the environment's image")
                mirror.append(MERGED, delta.data, "log")
                mirror.facts["building"] = not delta.data.endswith(b"\n")
            advance_position(position, delta.data, delta.restarted, delta.created_at)
            continue
        if delta.data and not started:
            started = mirror.facts["begun"] = True
            if "building" in mirror.facts:
                mirror.append(MERGED, b"\n" if mirror.facts.pop("building") else b"", "log")
                append_note(mirror, "the job starts")
        if label(name):
            _merge(mirror, name, delta, ended)
        else:
            mirror.append(MERGED, delta.data, "log")
            if delta.data:
                mirror.facts["open"] = not delta.data.endswith(b"\n")
        advance_position(position, delta.data, delta.restarted, delta.created_at)


def _merge(mirror: MirrorFiles, name: str, delta: FileDelta, ended: bool) -> None:
    """Append complete lines, each with its rank, to the merged log, and all bytes to a file of their own."""
    rank = _RANK.fullmatch(name)
    own = f"log/{name.rpartition('/')[2]}"
    if rank and not rank[2] and int(rank[1]):  # the file of rank 0 is the merged log
        own = f"log/rank-{rank[1]}.txt"
    mirror.append(own, delta.data)
    position = mirror.read_position(name)
    pending = b"" if delta.restarted else bytes.fromhex(position.get("held") or "")
    data = pending + delta.data
    end = data.rfind(b"\n") + 1
    if (ended and not delta.more) or len(data) - end > _MAX_LINE_BYTES:
        data += b"" if not data or data.endswith(b"\n") else b"\n"
        end = len(data)
    position["held"] = data[end:].hex()
    prefix = label(name).encode()
    lines = data[:end].split(b"\n")[:-1]
    mirror.append(MERGED, b"".join(prefix + line + b"\n" for line in lines), "log")


def _note_restart(mirror: MirrorFiles, attempt: int) -> None:
    append_note(mirror, f"attempt {attempt}: the machine was preempted, the service restarts the job")
    mirror.facts["attempt"] = attempt


def append_note(mirror: MirrorFiles, text: str) -> None:
    """Append a line of amltrain to the merged log."""
    newline = b"\n" if mirror.facts.pop("open", False) else b""
    mirror.append(MERGED, newline + _MARK.format(text).encode(), "log")
