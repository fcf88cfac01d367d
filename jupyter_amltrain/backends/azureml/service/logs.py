"""New bytes of a job's files, by HTTP ranges of their signed addresses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_amltrain.backends.azureml import errors
from jupyter_amltrain.backends.azureml.service.mirror_files import OVERLAP, MirrorFiles
from jupyter_amltrain.errors import AmlTrainError

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

#: Bytes of one request.
PART = 4 << 20


class FileDelta(NamedTuple):
    """What came of one file.

    Attributes
    ----------
    data
        New bytes.
    restarted
        It is another file than the one that was read so far: `data` is from its beginning.
    more
        There is more of it.
    made
        When the storage service made the file.
    """

    data: bytes = b""
    restarted: bool = False
    more: bool = False
    made: str = ""


class Reader:
    """Reads files of one job.

    Parameters
    ----------
    address
        Gives the signed address of a file; with an address, another one than that, whose time is over. Empty
        for a file that is not there.
    """

    def __init__(self, call: ServiceCall, address: Callable[[str, str], str]) -> None:
        self._call, self._address = call, address

    def new(self, name: str, known: dict[str, Any], again: bool = False) -> FileDelta:
        """What is behind `known` (see :attr:`MirrorFiles.remote`), which this does not change.

        Parameters
        ----------
        again
            The service has started the job again: a file that was made anew is another one, even where it
            begins like the one before. (Without that it may be one that is written whole each time.)
        """
        offset, tail = int(known.get("offset") or 0), bytes.fromhex(known.get("tail") or "")
        answer = self._get(name, offset - len(tail), offset + PART)
        if answer is None:
            return FileDelta()
        data, total, made = answer
        other = bool(again and offset and made and made != known.get("made", made) and not known.get("rewritten"))
        if other or not data.startswith(tail) or total < offset:
            answer = self._get(name, 0, PART)
            if answer is None or not answer[0]:
                return FileDelta()  # it is being written anew
            return FileDelta(answer[0], True, answer[1] > len(answer[0]), answer[2])
        new = data[len(tail) :]
        return FileDelta(new, False, total > offset + len(new), made)

    def whole(self, name: str, known: dict[str, Any]) -> bytes | None:
        """A small file that is replaced as a whole; ``None`` when it is as it was. Notes its mark in `known`."""
        url = ""
        for fresh in (False, True):
            url = self._address(name, url)
            if not url:
                return None
            headers = {"x-ms-version": "2021-08-06"}
            if known.get("etag"):
                headers["If-None-Match"] = known["etag"]
            try:
                answer = self._call.cloud.blob(url).send("GET", headers=headers, ok=(200, 304), act="read a file")
            except AmlTrainError as error:
                if errors.details_of(error).status == 403 and not fresh:
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
        """Bytes, the size of the whole, and when it was made; nothing for a file that is not there."""
        url = ""
        for fresh in (False, True):
            url = self._address(name, url)
            if not url:
                return None
            try:
                answer = self._call.cloud.blob(url).get(start, end)
            except AmlTrainError as error:
                status = errors.details_of(error).status
                if status == 403 and not fresh:
                    continue  # its hour is over
                if status == 404:
                    return None
                raise
            told, made = answer.headers.get("content-range", ""), answer.headers.get("x-ms-creation-time", "")
            if answer.status == 416:
                return b"", _total(told, 0), made
            if answer.status == 200:  # somebody between us and the storage does not know ranges
                return answer.bytes[start:end], len(answer.bytes), made
            return answer.bytes, _total(told, start + len(answer.bytes)), made
        return None


def advance(known: dict[str, Any], data: bytes, restarted: bool, made: str = "") -> None:
    """Note that `data` was taken."""
    if made and not restarted and known.get("made", made) != made:
        known["rewritten"] = True
    if made:
        known["made"] = made
    before = b"" if restarted else bytes.fromhex(known.get("tail") or "")
    known["offset"] = (0 if restarted else int(known.get("offset") or 0)) + len(data)
    known["tail"] = (before + data)[-OVERLAP:].hex()


def _total(text: str, default: int) -> int:
    """``bytes 0-9/200`` or ``bytes */200`` -> 200."""
    size = text.rpartition("/")[2]
    return int(size) if size.isdigit() else default


MERGED = "log/rank-0.txt"
_RANK = re.compile(r"user_logs/std_log_process_0*(\d+)(_\w+)?\.txt")
#: Recorded: ``azureml-logs/20_image_build_log.txt``.
_RETRIED = re.compile(r"retry_0*(\d+)/(user_logs/.+)")
_BUILD = re.compile(r"azureml-logs/\d+_image_build_log\.txt")
#: What a parent of other jobs, or a Spark driver, says itself: the SDK's ``PIPELINE_JOB_LOG_PATTERN`` and
#: ``SWEEP_JOB_LOG_PATTERN``, and recorded: ``logs/azureml/stdoutlogs.txt``, ``stderrlogs.txt``.
_OWN = re.compile(r"logs/azureml/.+|azureml-logs/hyperdrive\.txt")
#: A line that has no end is shown after so many bytes.
_MAX_LINE_BYTES = 64 * 1024
_MARK = "amltrain: --- {} ---\n"


def wanted(names: Iterable[str], job_type: str = "command") -> list[str]:
    """The files that make up the log, in the order in which they are shown at first.

    Parameters
    ----------
    job_type
        Of the job; what is not a command has logs of its own.
    """
    own = job_type != "command"
    found = [
        name
        for name in names
        if _BUILD.fullmatch(name) or name.startswith("user_logs/") or (own and _OWN.fullmatch(name))
    ]
    return sorted(found, key=_order)


def retried(names: Iterable[str]) -> dict[int, dict[str, str]]:
    """Logs of attempts that are over, where the service keeps them: attempt -> name as it was -> name now."""
    found: dict[int, dict[str, str]] = {}
    for name in sorted(names):
        if match := _RETRIED.fullmatch(name):
            found.setdefault(int(match[1]), {})[match[2]] = name
    return found


def over(mirror: MirrorFiles, attempt: int) -> None:
    """What was read of the user's logs is of an attempt that is over: the next one begins them anew."""
    if int(mirror.facts.get("attempt") or 1) > attempt:
        return
    _again(mirror, attempt + 1)
    for name, known in mirror.remote.items():
        if name.startswith("user_logs/"):
            known.update(offset=0, tail="", held="")


def is_build(name: str) -> bool:
    """Whether it is the log of the environment's image."""
    return _BUILD.fullmatch(name) is not None


def _order(name: str) -> tuple[int, int, str]:
    if is_build(name):
        return 0, 0, name
    rank = _RANK.fullmatch(name)
    return (1, int(rank[1]), name) if rank else (1 if name == "user_logs/std_log.txt" else 2, 0, name)


def label(name: str) -> str:
    """What stands before each line of a file; nothing for the log of a job of one process."""
    if name in ("user_logs/std_log.txt", "logs/azureml/executionlogs.txt", "azureml-logs/hyperdrive.txt"):
        return ""
    rank = _RANK.fullmatch(name)
    if rank:
        return f"[rank {rank[1]}{(rank[2] or '').replace('_', ' ')}] "
    return f"[{name.removeprefix('user_logs/').removeprefix('logs/azureml/')}] "


def take(
    mirror: MirrorFiles, news: Mapping[str, FileDelta], *, attempt: int, ended: bool, running: bool = True
) -> None:
    """Append what came.

    Parameters
    ----------
    news
        By name, in the order of :func:`wanted`.
    attempt
        Which try of the service this is, from 1.
    ended
        Nothing will follow: lines without an end are shown too.
    running
        That try has begun to run; before, what comes is the rest of the one before.
    """
    said = int(mirror.facts.get("attempt") or 1)
    user = [name for name in news if not is_build(name)]
    begun = bool(mirror.facts.get("begun"))
    if any(news[name].restarted for name in user):
        if attempt > said or attempt == 1:  # a service that does not count says 1
            _again(mirror, max(attempt, said + 1))
    elif attempt > said and not begun:
        mirror.facts["attempt"] = attempt
    elif attempt > said and running and any(news[name].data for name in user):
        _again(mirror, attempt)
    for name, came in news.items():
        known = mirror.of(name)
        if is_build(name):
            if came.data and not begun:
                if not known["offset"]:
                    note(mirror, "the environment's image is built")
                mirror.append(MERGED, came.data, "log")
                mirror.facts["building"] = not came.data.endswith(b"\n")
            advance(known, came.data, came.restarted, came.made)
            continue
        if came.data and not begun:
            begun = mirror.facts["begun"] = True
            if "building" in mirror.facts:
                mirror.append(MERGED, b"\n" if mirror.facts.pop("building") else b"", "log")
                note(mirror, "the job starts")
        if label(name):
            _merge(mirror, name, came, ended)
        else:
            mirror.append(MERGED, came.data, "log")
            if came.data:
                mirror.facts["open"] = not came.data.endswith(b"\n")
        advance(known, came.data, came.restarted, came.made)


def _merge(mirror: MirrorFiles, name: str, came: FileDelta, ended: bool) -> None:
    """Whole lines, each with its rank; the raw file lies beside."""
    rank = _RANK.fullmatch(name)
    raw = f"log/process-{rank[1]}.txt" if rank and not rank[2] else f"log/{name.rpartition('/')[2]}"
    mirror.append(raw, came.data)
    known = mirror.of(name)
    held = b"" if came.restarted else bytes.fromhex(known.get("held") or "")
    data = held + came.data
    end = data.rfind(b"\n") + 1
    if (ended and not came.more) or len(data) - end > _MAX_LINE_BYTES:
        data += b"" if not data or data.endswith(b"\n") else b"\n"
        end = len(data)
    known["held"] = data[end:].hex()
    head = label(name).encode()
    lines = data[:end].split(b"\n")[:-1]
    mirror.append(MERGED, b"".join(head + line + b"\n" for line in lines), "log")


def _again(mirror: MirrorFiles, attempt: int) -> None:
    note(mirror, f"attempt {attempt}: the service starts the job again, its machine was taken away")
    mirror.facts["attempt"] = attempt


def note(mirror: MirrorFiles, text: str) -> None:
    """A line of ours."""
    begin = b"\n" if mirror.facts.pop("open", False) else b""
    mirror.append(MERGED, begin + _MARK.format(text).encode(), "log")
