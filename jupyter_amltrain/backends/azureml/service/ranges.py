"""New bytes of a job's files, by HTTP ranges of their signed addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_amltrain.backends.azureml import faults
from jupyter_amltrain.backends.azureml.service.mirror_files import OVERLAP
from jupyter_amltrain.errors import AmlTrainError

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

#: Bytes of one request.
PART = 4 << 20


class News(NamedTuple):
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

    def new(self, name: str, known: dict[str, Any], again: bool = False) -> News:
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
            return News()
        data, total, made = answer
        other = bool(again and offset and made and made != known.get("made", made) and not known.get("rewritten"))
        if other or not data.startswith(tail) or total < offset:
            answer = self._get(name, 0, PART)
            if answer is None or not answer[0]:
                return News()  # it is being written anew
            return News(answer[0], True, answer[1] > len(answer[0]), answer[2])
        new = data[len(tail) :]
        return News(new, False, total > offset + len(new), made)

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
                if faults.told(error).status == 403 and not fresh:
                    continue
                if faults.told(error).status == 404:
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
                status = faults.told(error).status
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
