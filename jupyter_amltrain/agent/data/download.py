"""Download of the file of a web address: once, checked again at each use, resumed after a cut."""

from __future__ import annotations

import base64
import errno
import hashlib
import http.client
import netrc
import os
import re
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.request
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Tuple
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from .. import protocol, testing
from ..protocol import AgentError, read_json, write_json
from .cache import PART, PART_FACTS, RECORD, DataCache, key_of, new_record

Json = Dict[str, Any]
Report = Callable[[str], None]

#: Seconds for a connection, and without a byte of an answer.
TIMEOUT_S = 30.0
#: Tries without a new byte, and seconds before the second one, which double with each.
MAX_TRIES, FIRST_PAUSE_S = 4, 1.0
#: Longest pause that a server may ask for.
MAX_PAUSE_S = 30.0
#: Variable with the largest download in GiB, and its default.
LIMIT_VARIABLE, DEFAULT_LIMIT_GIB = "AMLTRAIN_MAX_DOWNLOAD_GIB", 20.0
#: Seconds between two reports of the progress.
_REPORT_INTERVAL_S = 0.5
_BLOCK_BYTES = 1 << 18
_REFERENCE = re.compile(r"\$\{(\w+)\}")
#: Statuses after which the same request may succeed.
_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})
_CREDENTIALS_HINT = "Give credentials in ~/.netrc of the machine, or as ${NAME} in the address with --secret NAME"


class DownloadFailed(Exception):
    """The file cannot be downloaded; the message is one line for the user, without secrets."""


class _Cut(Exception):
    """The server could not be reached, or the connection ended early; another try may succeed."""

    def __init__(self, reason: str, pause_s: float = 0.0, is_final: bool = False) -> None:
        super().__init__(reason)
        self.pause_s = pause_s
        self.is_final = is_final  #: another try is pointless now


class Source(NamedTuple):
    """An address with the values of its references: secrets, only in memory."""

    url: str  #: without user and password
    user: str
    password: str
    host: str


def source_of(url: str, variables: Mapping[str, str]) -> Source:
    """Return an address with ``${NAME}`` replaced by variables of the job.

    Raises
    ------
    DownloadFailed
        There is no such variable, or the address is invalid.
    """

    def value_of(match: Any) -> str:
        name = match.group(1)
        if name not in variables:
            raise DownloadFailed("the variable %s in the address has no value. Add --secret %s" % (name, name))
        return str(variables[name])

    try:
        parts = urlsplit(url)
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        host = parts.netloc.rpartition("@")[2]
        path, query = (quote(_REFERENCE.sub(value_of, part), safe="%/:=&?~+!$,;'@()*[]-._") for part in parts[2:4])
        parsed = urlsplit(urlunsplit((parts.scheme, host, path or "/", query, "")))
        if not parsed.hostname or parsed.port == 0:
            raise ValueError(host)
        host.encode("ascii")
    except ValueError:
        raise DownloadFailed("the address is not valid") from None
    user, password = (_REFERENCE.sub(value_of, part) for part in (user, password))
    return Source(parsed.geturl(), user, password, parsed.hostname)


def download(
    cache: DataCache, url: str, environ: Mapping[str, str], variables: Mapping[str, str], report: Report
) -> Json:
    """Return the record of the current file of an address; it is downloaded if the cache does not have it.

    Parameters
    ----------
    environ
        Variables with proxies, certificates, the home folder and the limit.
    variables
        Values of references in the address.
    report
        Called with progress, at most some times per second.

    Raises
    ------
    DownloadFailed
        One line for the user.
    AgentError
        The state root cannot be written.
    """
    key = key_of(url)
    handle = cache.lock(key)
    if handle is None:
        report("waiting for another run that downloads it")
        handle = cache.lock(key, wait=True)
    try:
        cache.make_folder(key)
        return _Download(cache, key, url, environ, variables, report).run()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text = "no space is left on the disk of %s. Free some space, and submit again" % cache.folder
        else:
            text = "%s cannot be written: %s" % (cache.folder, error.strerror or type(error).__name__)
        raise DownloadFailed(text) from error
    finally:
        if handle is not None:
            os.close(handle)


class _Part:
    """The beginning of a file, which a later try or run continues."""

    def __init__(self, cache: DataCache, key: str) -> None:
        self._path, self._facts_path = cache.below(key, PART), cache.below(key, PART_FACTS)
        self.facts: Json = {}
        self.size, self.digest = 0, hashlib.sha256()
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
        try:
            facts = read_json(self._facts_path, "Data cache") or {}
        except AgentError:
            facts = {}
        if _strong(facts):
            with open(self._path, "rb") as file:
                while block := file.read(1 << 20):
                    self.digest.update(block)
                    self.size += len(block)
            self.facts = facts if self.size else {}

    @property
    def is_resumable(self) -> bool:
        """Whether a request for the rest can name the version that the beginning belongs to."""
        return self.size > 0 and bool(_strong(self.facts))

    def begin(self, facts: Json) -> None:
        """Begin again, with a file of these validators."""
        self._file.truncate(0)
        self.size, self.digest, self.facts = 0, hashlib.sha256(), facts
        write_json(self._facts_path, dict(facts, schema=protocol.SCHEMA))

    def append(self, block: bytes) -> None:
        """Append bytes."""
        view = memoryview(block)
        while view:
            view = view[self._file.write(view) :]
        self.digest.update(block)
        self.size += len(block)

    def complete(self, path: str) -> os.stat_result:
        """Give the file its final name."""
        os.fsync(self._file.fileno())
        os.fchmod(self._file.fileno(), 0o400)
        testing.hit("download_before_rename")
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.replace(self._path, path)
        os.unlink(self._facts_path)
        return os.stat(path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _strong(facts: Mapping[str, Any]) -> str:
    """Return the validator with which a range can be requested; empty without one."""
    etag = str(facts.get("etag") or "")
    return etag if etag and not etag.startswith("W/") else str(facts.get("modified") or "") if not etag else ""


class _Download:
    """One download or check, under the lock of its address."""

    def __init__(
        self,
        cache: DataCache,
        key: str,
        url: str,
        environ: Mapping[str, str],
        variables: Mapping[str, str],
        report: Report,
    ) -> None:
        self._cache, self._key, self._url, self._report = cache, key, url, report
        self._environ = environ
        self._source = source_of(url, variables)
        self._opener = _opener(self._source, environ)
        self._limit = _limit_bytes(environ)
        self._stored = cache.record(key)
        self._part: Optional[_Part] = None
        self._shown_at = protocol.mono()

    def run(self) -> Json:
        """Check or download the file, with further tries after a cut."""
        tries, size = 0, 0
        while True:
            try:
                record = self._request()
                break
            except _Cut as cut:
                new_size = self._part.size if self._part is not None else 0
                tries = 1 if new_size > size else tries + 1
                size = new_size
                if tries >= MAX_TRIES or cut.is_final:
                    return self._fallback(str(cut))
                pause_s = cut.pause_s or FIRST_PAUSE_S * 2 ** (tries - 1)
                self._report("%s; trying again in %.0f s" % (cut, pause_s))
                time.sleep(pause_s)
            finally:
                if self._part is not None:
                    self._part.close()
        os.utime(self._cache.below(self._key, RECORD))  # the time of its last use
        return record

    def _fallback(self, reason: str) -> Json:
        """Return the stored file when the server does not answer."""
        if self._stored is None:
            raise DownloadFailed(reason)
        age_days = (protocol.wall() - float(self._stored.get("downloaded") or 0.0)) / 86400
        self._report("%s; using the copy of %.0f days ago" % (reason, age_days))
        return dict(self._stored, checked=False)

    def _request(self) -> Json:
        """Send one request; return the record of the complete file."""
        self._part = part = _Part(self._cache, self._key)
        headers = {"Accept-Encoding": "identity", "User-Agent": "jupyter-amltrain", "Accept": "*/*"}
        if part.is_resumable:
            headers.update({"Range": "bytes=%d-" % part.size, "If-Range": _strong(part.facts)})
        elif self._stored is not None:
            for name, header in (("etag", "If-None-Match"), ("modified", "If-Modified-Since")):
                if self._stored[name]:
                    headers[header] = self._stored[name]
        request = urllib.request.Request(self._source.url, headers=headers)
        _authorize(request, self._source, self._environ)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                return self._answer(response)
        except urllib.error.HTTPError as error:
            return self._status(error)
        except DownloadFailed:
            raise
        except urllib.error.URLError as error:
            raise self._unreachable(error.reason) from None
        except (http.client.HTTPException, ssl.SSLError, socket.timeout, ConnectionError, socket.gaierror) as error:
            raise self._unreachable(error) from None
        except (ValueError, LookupError) as error:  # its text may contain the address with secrets
            text = "the answer of %s is not valid HTTP (%s)" % (self._host, type(error).__name__)
            raise DownloadFailed(text) from None

    @property
    def _host(self) -> str:
        return self._source.host

    def _status(self, error: urllib.error.HTTPError) -> Json:
        """Handle an answer that is not a success."""
        status = error.code
        error.close()
        if status == 304 and self._stored is not None:
            return self._stored
        if status == 416 and self._part is not None and self._part.size:
            self._part.begin({})  # the file has become shorter
            raise _Cut("%s has another file now" % self._host, 0.01)
        if status in (401, 403):
            raise DownloadFailed("%s refused access (%d). %s" % (self._host, status, _CREDENTIALS_HINT))
        if status in (404, 410):
            raise DownloadFailed("%s has no such file (%d). Check the address" % (self._host, status))
        if 300 <= status < 400:
            raise DownloadFailed("%s redirects in a circle or to no address (%d)" % (self._host, status))
        if status == 407:
            raise DownloadFailed("the proxy refused access (407). Check user and password in HTTPS_PROXY")
        reason = "%s answered with an error (%d)" % (self._host, status)
        if status in _TEMPORARY:
            raise _Cut(reason, _pause_of(error.headers.get("Retry-After")))
        raise DownloadFailed("%s. Check the address" % reason)

    def _unreachable(self, reason: Any) -> Exception:
        """Return the exception for a connection that failed."""
        host = self._host
        if isinstance(reason, DownloadFailed):
            return reason
        if isinstance(reason, ssl.SSLCertVerificationError):
            text = "the certificate of %s is not trusted (%s). Set SSL_CERT_FILE to the file of its authority"
            return DownloadFailed(text % (host, reason.verify_message))
        if isinstance(reason, socket.gaierror):
            return _Cut("the host %s was not found. Check the address and the proxy" % host, is_final=True)
        if isinstance(reason, socket.timeout) or "timed out" in str(reason):
            return _Cut("%s did not answer within %g s" % (host, TIMEOUT_S))
        if isinstance(reason, ConnectionRefusedError):
            return _Cut("%s refused the connection" % host, is_final=True)
        if isinstance(reason, OSError) and str(reason).startswith("Tunnel connection failed"):
            return DownloadFailed("the proxy refused the connection to %s. Check HTTPS_PROXY" % host)
        return _Cut("the connection to %s was cut" % host)

    def _answer(self, response: Any) -> Json:
        """Receive the body of a success."""
        part, headers = self._part, response.headers
        assert part is not None
        facts = {"etag": headers.get("ETag") or "", "modified": headers.get("Last-Modified") or ""}
        length = _number(headers.get("Content-Length"))
        if response.status == 206:
            start, total = _range_of(headers.get("Content-Range"))
            changed = any(value and value != part.facts.get(name) for name, value in facts.items())
            if start != part.size or changed or not part.is_resumable:
                part.begin({})
                raise _Cut("%s sent another part of the file" % self._host, 0.01)
        else:
            total = length
            if self._is_stored(facts, total):
                return self._stored or {}
            part.begin(facts)
        self._check_size(total, part.size)
        began, start = protocol.mono(), part.size
        while block := self._read(response):
            part.append(block)
            if part.size > self._limit:
                self._check_size(part.size, part.size)
            self._show(part.size, total, (part.size - start) / max(0.001, protocol.mono() - began))
        if total is not None and part.size != total:
            raise _Cut("the connection to %s was cut after %s" % (self._host, size_text(part.size)))
        return self._complete(part)

    def _read(self, response: Any) -> bytes:
        testing.hit("download_block")
        try:
            return bytes(response.read1(_BLOCK_BYTES))
        except (http.client.HTTPException, OSError, ValueError) as error:
            raise self._unreachable(error) from None

    def _is_stored(self, facts: Mapping[str, str], total: Optional[int]) -> bool:
        """Whether a server that ignores conditions sends the file that is stored."""
        stored = self._stored
        if stored is None or total != stored["bytes"]:
            return False
        return bool(_strong(facts)) and all(stored[name] == value for name, value in facts.items())

    def _check_size(self, total: Optional[int], received: int) -> None:
        if total is None:
            return
        if total > self._limit:
            text = "the file has %s, over the limit of %s. To allow it: --env-var %s=%d"
            needed = total // 2**30 + 1
            raise DownloadFailed(text % (size_text(total), size_text(self._limit), LIMIT_VARIABLE, needed))
        free = shutil.disk_usage(self._cache.below(self._key)).free
        if total - received > free:
            text = "the file has %s, and only %s are free on the disk of %s. Free some space, and submit again"
            raise DownloadFailed(text % (size_text(total), size_text(free), self._cache.folder))

    def _show(self, size: int, total: Optional[int], rate: float) -> None:
        """Report the progress; `rate` in bytes per second."""
        now = protocol.mono()
        if now - self._shown_at < _REPORT_INTERVAL_S:
            return
        self._shown_at = now
        text = "%s, %s/s" % (size_text(size), size_text(rate))
        if total is not None:
            text = "%s of %s, %s/s, %.0f s left"
            text = text % (size_text(size), size_text(total), size_text(rate), (total - size) / max(1.0, rate))
        self._report(text)

    def _complete(self, part: _Part) -> Json:
        sha256 = part.digest.hexdigest()
        facts = part.facts
        record = new_record(self._url, sha256, os.stat(part._path), str(facts["etag"]), str(facts["modified"]))
        done = part.complete(self._cache.path(self._key, record))
        record["mtime_ns"] = done.st_mtime_ns
        self._cache.write_record(self._key, record)
        self._cache.sweep(self._key)
        return dict(record, new=True)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to other web addresses, never from https to http; credentials stay with their host."""

    def __init__(self, source: Source, environ: Mapping[str, str]) -> None:
        self._source, self._environ = source, environ

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Return the request to the new address."""
        newurl = urljoin(req.full_url, newurl.replace(" ", "%20"))
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme not in ("http", "https") or (old.scheme == "https" and new.scheme == "http"):
            raise DownloadFailed("%s redirects to an address that is not encrypted" % old.hostname)
        request = urllib.request.Request(newurl, headers=req.headers, origin_req_host=req.origin_req_host)
        _authorize(request, self._source, self._environ)
        return request

    def http_error_308(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        """Follow a permanent redirect, which older versions of Python do not know."""
        return self.http_error_302(req, fp, 302, msg, headers)


def _authorize(request: urllib.request.Request, source: Source, environ: Mapping[str, str]) -> None:
    """Add the credentials of the host: those of the address, otherwise those of ``.netrc``."""
    user, password = source.user, source.password
    parts = urlsplit(request.full_url)
    same = urlsplit(source.url)
    if not user or (parts.scheme, parts.netloc) != (same.scheme, same.netloc):
        user, password = _netrc_login(parts.hostname or "", environ)
    if user:
        token = base64.b64encode(("%s:%s" % (user, password)).encode()).decode()
        # Such a header is not sent to the target of a redirect.
        request.add_unredirected_header("Authorization", "Basic " + token)


def _netrc_login(host: str, environ: Mapping[str, str]) -> Tuple[str, str]:
    path = environ.get("NETRC") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".netrc")
    try:
        entry = netrc.netrc(path).hosts.get(host)
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        entry = None
    return (entry[0] or "", entry[2] or "") if entry else ("", "")


def _opener(source: Source, environ: Mapping[str, str]) -> urllib.request.OpenerDirector:
    """Return a client for web addresses only, with the proxies and certificates of the environment."""
    opener = urllib.request.OpenerDirector()
    cafile = next(filter(None, map(environ.get, ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))), None)
    try:
        context = ssl.create_default_context(cafile=cafile)
    except OSError as error:
        raise DownloadFailed("the certificates in %s cannot be read: %s" % (cafile, error.strerror)) from None
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=context),
        _Redirects(source, environ),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _limit_bytes(environ: Mapping[str, str]) -> int:
    try:
        gib = float(environ.get(LIMIT_VARIABLE) or DEFAULT_LIMIT_GIB)
    except ValueError:
        raise DownloadFailed("%s must be a number of GiB" % LIMIT_VARIABLE) from None
    return int(gib * 2**30)


def _pause_of(text: Optional[str]) -> float:
    """Return the pause of ``Retry-After`` in seconds, within limits; 0 for none."""
    seconds = _number(text)
    return min(float(seconds), MAX_PAUSE_S) if seconds else 0.0


def _number(text: Optional[str]) -> Optional[int]:
    return int(text) if text and text.strip().isdigit() else None


def _range_of(text: Optional[str]) -> Tuple[Optional[int], Optional[int]]:
    """Return the start and the total size of ``Content-Range: bytes 5-9/10``."""
    match = re.match(r"bytes (\d+)-\d+/(\d+|\*)\s*\Z", text or "")
    return (int(match.group(1)), _number(match.group(2))) if match else (None, None)


def size_text(size: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return "%.4g %s" % (size, unit)
        size /= 1024
    return "%.4g GiB" % size
