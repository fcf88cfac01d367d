"""The workspace's storage account: real Azurite, reached by clients through the wire log and the faults.

`world.blob` for rooms of the emulator: `put`, `append`, `get`, `list`, `url` with a SAS.
"""

from __future__ import annotations

import asyncio
import datetime
import re
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
from aiohttp import web
from yarl import URL

from azureml_emulator import public
from azureml_emulator.routing import Call, Routes

if TYPE_CHECKING:
    from azureml_emulator.world import World

routes = Routes()
#: Containers that a workspace has from its first day; the file store's is no blob container.
ARTIFACTS = "azureml"
#: What the storage service says when the time of a signature is over.
_OVER_HEADERS = {"x-ms-error-code": "AuthenticationFailed"}
_OVER = (
    '<?xml version="1.0" encoding="utf-8"?><Error><Code>AuthenticationFailed</Code><Message>Server failed to'
    " authenticate the request. Make sure the value of Authorization header is formed correctly including the"
    " signature.</Message><AuthenticationErrorDetail>Signature not valid in the specified time frame"
    "</AuthenticationErrorDetail></Error>"
)
_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "proxy-connection", "te", "upgrade"}


class Blob:
    """One storage account in Azurite.

    Attributes
    ----------
    account, key, host
        ``amltrainstore``, its base64 key, ``amltrainstore.blob.core.windows.net``.
    base : str
        ``https://amltrainstore.blob.core.windows.net``, as clients see it (through the proxy).
    store : str
        Container of ``workspaceblobstore``.
    """

    def __init__(self, world: World, account: str, key: str, port: int) -> None:
        self.world, self.account, self.key, self.port = world, account, key, port
        self.host = f"{account}.blob.core.windows.net"
        self.base = f"https://{self.host}"
        self.store = "azureml-blobstore-0b7e8d76-df37-472b-b882-0c1c58adfcf9"
        self._session: aiohttp.ClientSession | None = None
        self._account_sas = ""
        #: Signatures that were given, and those that are refused since `expire`.
        self._given: set[str] = set()
        self._over: set[str] = set()
        self._expired = 0

    # ------------------------------------------------------------------------------------------------------------- SAS
    def sas(self, container: str, name: str | None = None, *, permission: str = "rcwld", seconds: float = 3600) -> str:
        """A SAS query (no leading "?") for a container, or for one blob of it; by the wall's time."""
        from azure.storage.blob import generate_blob_sas, generate_container_sas

        now = datetime.datetime.now(datetime.timezone.utc)
        common: dict[str, Any] = {
            "account_key": self.key,
            "permission": permission,
            "start": self._start(now),
            "expiry": now + datetime.timedelta(seconds=seconds),
        }
        if name is None:
            return self._kept(generate_container_sas(self.account, container, **common))
        return self._kept(generate_blob_sas(self.account, container, name, **common))

    def account_sas(self, *, seconds: float = 3600) -> str:
        """A SAS query (no leading "?") for the account, as `listSecrets` gives it (recording 08: ss=b, srt=co)."""
        from azure.storage.blob import generate_account_sas

        now = datetime.datetime.now(datetime.timezone.utc)
        return self._kept(
            generate_account_sas(
                self.account,
                self.key,
                resource_types="co",
                permission="rwdlacup",
                start=self._start(now),
                expiry=now + datetime.timedelta(seconds=seconds),
            )
        )

    def _start(self, now: datetime.datetime) -> datetime.datetime:
        """Of two signatures of one second, one before and one after `expire`, the times must differ."""
        return now - datetime.timedelta(minutes=5, seconds=self._expired)

    def _kept(self, query: str) -> str:
        self._given.add(URL(f"?{query}", encoded=True).query["sig"])
        return query

    def given(self) -> list[str]:
        """Every signature that clients were given, as it stands in an address and as it is."""
        return sorted({text for sig in self._given | self._over for text in (sig, quote(sig, safe=""))})

    def expire(self) -> int:
        """Every signature given so far is refused from now on, as if its hour were over; returns their number."""
        self._over |= self._given
        self._given.clear()
        self._expired += 1
        return len(self._over)

    def is_over(self, sig: str) -> bool:
        """Whether a signature's time is over by `expire`."""
        return sig in self._over

    def url(self, container: str, name: str, *, permission: str = "r", seconds: float = 3600) -> str:
        """Url of one blob with a SAS of its own."""
        return (
            f"{self.base}/{container}/{quote(name)}?{self.sas(container, name, permission=permission, seconds=seconds)}"
        )

    # ------------------------------------------------------------------------------------------------- our own requests
    def session(self) -> aiohttp.ClientSession:
        """Connections to Azurite; its certificate is ours, on loopback."""
        if self._session is None:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            # Node closes a connection that is idle for 5 s: one that is used again at that moment would be reset.
            connector = aiohttp.TCPConnector(ssl=context, limit=64, keepalive_timeout=2.0)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False, trust_env=False)
        return self._session

    async def request(
        self, method: str, path: str, query: str = "", body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """One request to Azurite as the account's owner; path from the account's root, not encoded."""
        query = "&".join(part for part in (query, self.owner()) if part)
        url = URL(f"https://127.0.0.1:{self.port}{quote(path)}?{query}", encoded=True)
        sent = {"Host": self.host, "x-ms-version": "2023-11-03", **(headers or {})}
        tries = 3 if method == "GET" else 1  # on a busy machine Azurite resets a connection now and then
        while True:
            tries -= 1
            try:
                async with self.session().request(method, url, data=body, headers=sent) as answer:
                    return answer.status, dict(answer.headers), await answer.read()
            except aiohttp.ClientConnectionError:
                if not tries:
                    raise

    def owner(self) -> str:
        """A SAS query (no leading "?") that opens everything, for ourselves."""
        if not self._account_sas:
            from azure.storage.blob import generate_account_sas

            expiry = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=2)
            self._account_sas = str(
                generate_account_sas(self.account, self.key, resource_types="sco", permission="rwdlacup", expiry=expiry)
            )
        return self._account_sas

    async def make(self, container: str) -> None:
        """A container, unless it is there."""
        status, _, body = await self.request("PUT", f"/{container}", "restype=container")
        if status not in (201, 409):
            raise OSError(f"Azurite: container {container}: {status} {body[:300]!r}")

    async def put(self, container: str, name: str, data: bytes, content_type: str = "application/octet-stream") -> None:
        """A block blob, whole."""
        headers = {"x-ms-blob-type": "BlockBlob", "x-ms-blob-content-type": content_type, "Content-Type": content_type}
        status, _, body = await self.request("PUT", f"/{container}/{name}", "", data, headers)
        if status != 201:
            raise OSError(f"Azurite: put {container}/{name}: {status} {body[:300]!r}")

    async def append(self, container: str, name: str, data: bytes) -> None:
        """Append to an append blob, made if need be: how the service writes live logs."""
        path, headers = f"/{container}/{name}", {"Content-Type": "application/octet-stream"}
        status, _, body = await self.request("PUT", path, "comp=appendblock", data, headers)
        if status == 404:
            await self.request(
                "PUT", path, "", b"", {"x-ms-blob-type": "AppendBlob", "x-ms-blob-content-type": "text/plain"}
            )
            status, _, body = await self.request("PUT", path, "comp=appendblock", data, headers)
        if status != 201:
            raise OSError(f"Azurite: append {container}/{name}: {status} {body[:300]!r}")

    async def get(self, container: str, name: str) -> bytes | None:
        """The blob's bytes, None when it is not there."""
        status, _, body = await self.request("GET", f"/{container}/{name}")
        return body if status == 200 else None

    async def list(self, container: str, prefix: str = "") -> list[tuple[str, int]]:
        """Names and sizes of blobs, sorted by name."""
        found: list[tuple[str, int]] = []
        marker = ""
        while True:
            query = f"restype=container&comp=list&prefix={quote(prefix)}" + (
                f"&marker={quote(marker)}" if marker else ""
            )
            status, _, body = await self.request("GET", f"/{container}", query)
            if status != 200:
                return found
            text = body.decode()
            for name, rest in re.findall(r"<Blob><Name>(.*?)</Name>(.*?)</Blob>", text, re.DOTALL):
                size = re.search(r"<Content-Length>(\d+)</Content-Length>", rest)
                found.append((_unescaped(name), int(size.group(1)) if size else 0))
            next_marker = re.search(r"<NextMarker>(.+?)</NextMarker>", text)
            if not next_marker:
                return found
            marker = next_marker.group(1)

    async def delete(self, container: str, name: str) -> None:
        """A blob, if it is there."""
        await self.request("DELETE", f"/{container}/{name}")

    async def reset(self) -> None:
        """No containers but a workspace's own, which are empty."""
        _, _, body = await self.request("GET", "/", "comp=list")
        for name in re.findall(r"<Container><Name>(.*?)</Name>", body.decode()):
            await self.request("DELETE", f"/{name}", "restype=container")
        for name in (ARTIFACTS, self.store):
            await self.make(name)
        self._given.clear()
        self._over.clear()

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()


def _unescaped(name: str) -> str:
    from xml.sax.saxutils import unescape

    return unescape(name, {"&quot;": '"', "&apos;": "'"})


@routes.on("blob", "*", "/{path*}", anonymous=True)
async def forward(call: Call) -> web.Response:
    """To Azurite and back, bytes as they are; Azurite checks keys and SAS, we a token."""
    blob = call.world.blob
    assert blob is not None
    if call.host != blob.host:
        return await _public(call)
    if blob.is_over(call.query.get("sig", "")):
        return web.Response(status=403, text=_OVER, content_type="application/xml", headers=_OVER_HEADERS)
    headers = {name: value for name, value in call.headers.items() if name.lower() not in _HOP}
    target = call.request.rel_url.raw_path_qs
    if headers.get("Authorization", "").startswith("Bearer "):
        call.world.tokens.check(call)
        del headers["Authorization"]
        target += f"{'&' if '?' in target else '?'}{blob.owner()}"
    url = URL(f"https://127.0.0.1:{blob.port}{target}", encoded=True)
    headers["Host"] = call.host
    async with blob.session().request(
        call.method,
        url,
        data=call.body or None,
        headers=headers,
        allow_redirects=False,
        skip_auto_headers=("Content-Type",),
    ) as answer:
        body = await answer.read()
        kept = [(name, value) for name, value in answer.headers.items() if name.lower() not in _HOP]
        made = web.Response(status=answer.status, body=body)
        made.headers.popall("Content-Type", None)
        for name, value in kept:
            made.headers.add(name, value)
        if call.method == "HEAD" and "Content-Length" in answer.headers:
            made.headers["Content-Length"] = answer.headers["Content-Length"]
        return made


async def _public(call: Call) -> web.Response:
    """A file of another account, which everybody may read."""
    found = call.world.part(public.Public).path_of(f"https://{call.host}{call.path}")
    if call.method not in ("GET", "HEAD") or found is None or not found.is_file():
        return web.Response(status=404, headers={"x-ms-error-code": "ResourceNotFound"})
    body = await asyncio.to_thread(found.read_bytes)
    return web.Response(body=body, content_type="application/octet-stream")
