"""The REST clients against a small HTTPS server that answers what a test has laid out."""

from __future__ import annotations

import http.server
import json
import threading
import time

import pytest
from azure.core.credentials import AccessToken

from azureml_emulator import tls
from jupyter_amltrain.azure.service import http as azure_http
from jupyter_amltrain.azure.service.account import Account, identity
from jupyter_amltrain.azure.service.cloud import Cloud
from jupyter_amltrain.errors import (
    AuthenticationError,
    CommandError,
    TargetError,
    TargetUnreachable,
)
from jupyter_amltrain.rpc import server


class Edge:
    """Answers in the order laid out; the last one again and again. Each is (status, headers, body) or ``"cut"``."""

    def __init__(self, certificates):
        self.seen = []
        self.answers = []
        edge = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self):
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size)
                edge.seen.append((self.command, self.path, dict(self.headers), body))
                answer = edge.answers.pop(0) if len(edge.answers) > 1 else edge.answers[0]
                if answer == "cut":
                    self.close_connection = True
                    self.connection.close()
                    return
                status, headers, body = answer
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = do

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None
        self._server.socket = certificates.context().wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return tls.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def edge(certificates, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificates.bundle))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("AMLTRAIN_AZURE_BACKOFF", "0.01")
    edge = Edge(certificates)
    yield edge
    edge.close()


class Tokens:
    """A credential with a cache, as MSAL has one: only claims make it request a new token."""

    def __init__(self, claims=True):
        self.number, self.requests, self._claims = 0, [], claims

    def get_token(self, *scopes, claims=None, tenant_id=None, **_):
        if claims and not self._claims:
            raise ValueError("no claims here")
        self.requests.append((scopes, bool(claims), tenant_id))
        if claims or not self.number:
            self.number += 1
        return AccessToken(f"token-{self.number}", int(time.time()) + 3600)


def client(edge, tokens=None, **more):
    account = Account(tokens, more.pop("tenant", "")) if tokens else None
    return azure_http.Rest(edge.url, "/subscriptions/s/w", account, "scope", where="ws", user="ada", **more)


def test_rest_path_is_relative_or_absolute(edge):
    edge.answers = [(200, {"X-A": "1"}, {"a": 1})]
    here = client(edge)
    answer = here.get("computes/x", api="v1", params={"$top": 2})
    assert (answer.status, answer.json, answer.headers["x-a"]) == (200, {"a": 1}, "1")
    here.put("/subscriptions/s", api="v2", json={"b": 2})
    long = f"{edge.url}/poll?api-version=v0&service=new&t=1&c={'A%2Fb-_' * 600}&s=x%3D%3D&h=y"
    here.get(long)
    paths = [path for _, path, _, _ in edge.seen]
    assert paths[0] in (
        "/subscriptions/s/w/computes/x?api-version=v1&$top=2",
        "/subscriptions/s/w/computes/x?api-version=v1&%24top=2",
    )
    assert paths[1] == "/subscriptions/s?api-version=v2"
    assert edge.url + paths[2] == long  # whole, as the service wants it back
    assert json.loads(edge.seen[1][3]) == {"b": 2} and "Authorization" not in edge.seen[1][2]
    assert edge.seen[0][2]["User-Agent"].startswith("jupyter-amltrain/")


def test_rest_pages_end_without_next_link(edge):
    edge.answers = [
        (200, {}, {"value": [1, 2], "nextLink": f"{edge.url}/next?$skipToken=a%2Bb"}),
        (200, {}, {"value": [3]}),
    ]
    assert list(client(edge).pages("computes", api="v1")) == [1, 2, 3]
    assert edge.seen[1][1] == "/next?$skipToken=a%2Bb"


def test_rest_refused_token_is_renewed_once(edge):
    tokens = Tokens()
    edge.answers = [(401, {"WWW-Authenticate": 'Bearer error="invalid_token"'}, b""), (200, {}, {"ok": True})]
    assert client(edge, tokens, tenant="t-1").get("x").json == {"ok": True}
    assert [headers["Authorization"] for _, _, headers, _ in edge.seen] == ["Bearer token-1", "Bearer token-2"]
    assert {tenant for _, _, tenant in tokens.requests} == {"t-1"}


def test_rest_token_refused_twice_raises_authentication_error(edge):
    edge.answers = [(401, {}, {"error": {"code": "InvalidAuthenticationToken", "message": "The token is bad."}})]
    with pytest.raises(AuthenticationError, match=r"bad.*connect --name ws"):
        client(edge, Tokens()).get("x")
    assert len(edge.seen) == 2


def test_rest_credential_without_claims_is_used(edge):
    edge.answers = [(401, {}, b""), (200, {}, {})]
    client(edge, Tokens(claims=False)).get("x")
    assert len(edge.seen) == 2


@pytest.mark.parametrize("method", ["get", "put", "post", "patch", "delete"])
def test_rest_429_is_retried_after_given_time(edge, method):
    edge.answers = [(429, {"Retry-After": "0.05"}, b""), (429, {}, b""), (200, {}, {})]
    assert getattr(client(edge), method)("x").status == 200
    assert len(edge.seen) == 3


def test_rest_retry_after_beyond_limit_fails_at_once(edge, monkeypatch):
    monkeypatch.setenv("AMLTRAIN_AZURE_MAX_WAIT", "5")
    edge.answers = [(429, {"Retry-After": "600"}, b"")]  # longer than a test may take
    with pytest.raises(TargetUnreachable, match="asks to wait 600 s"):
        client(edge).get("x")
    assert len(edge.seen) == 1


def test_rest_retry_wait_ends_on_cancel(edge):
    messages = []
    call = server.Call(1, messages.append)
    edge.answers = [(503, {"Retry-After": "50"}, b""), (200, {}, b"{}")]
    threading.Timer(0.3, call.cancel).start()
    with pytest.raises(server.Cancelled), server.working_for(call):
        client(edge).get("x")
    assert messages == [{"id": 1, "event": {"kind": "progress", "text": "Azure is busy; retrying in 50 s"}}]
    with pytest.raises(server.Cancelled), server.working_for(call):
        client(edge).get("x")  # nothing is sent any more
    assert len(edge.seen) == 1


def test_rest_server_error_and_cut_connection_are_retried(edge):
    edge.answers = ["cut", (500, {}, b""), (200, {}, {"a": 1})]
    assert client(edge).get("x").json == {"a": 1}


def test_rest_repeated_server_error_fails(edge):
    edge.answers = [(503, {}, {"error": {"code": "ServerBusy", "message": "Busy."}})]
    with pytest.raises(TargetUnreachable, match=r"503 ServerBusy.*Busy"):
        client(edge).get("x")
    assert 3 <= len(edge.seen) <= 6


def test_rest_post_after_cut_is_not_retried(edge):
    """Nobody knows whether the service has begun it."""
    edge.answers = ["cut", (200, {}, {})]
    with pytest.raises(TargetUnreachable, match="was cut"):
        client(edge).post("x/start", json={})
    assert len(edge.seen) == 1


def test_rest_accepted_status_is_returned(edge):
    edge.answers = [(404, {}, b"")]
    assert client(edge).get("x", ok=(200, 404)).status == 404
    with pytest.raises(TargetError, match="not found"):
        client(edge).get("x")
    with pytest.raises(TargetError, match="refuses to read the thing"):
        client(edge).get("x", act="read the thing")


def test_rest_untrusted_certificate_error_names_ca_bundle(edge, monkeypatch):
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    edge.answers = [(200, {}, {})]
    with pytest.raises(TargetUnreachable, match="REQUESTS_CA_BUNDLE"):
        client(edge).get("x")


def test_rest_connection_or_proxy_failure_is_reported(edge, monkeypatch):
    free = edge.url
    edge.close()
    with pytest.raises(TargetUnreachable, match="No connection to Azure"):
        azure_http.Rest(free, "", None).get("x")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(TargetUnreachable, match="proxy"):
        azure_http.Rest("https://management.azure.com", "", None).get("/x")


def test_blob_range_read_uses_no_token(edge, tmp_path):
    edge.answers = [(206, {}, b"cd"), (416, {}, b"<x/>"), (201, {}, b""), (404, {}, b"")]
    url = f"{edge.url}/c/log.txt?sv=1&sig=a%2Bb%3D&se=2026-01-01T00%3A00%3A00Z"
    blob = Cloud(tmp_path).blob(url)
    assert blob.get(2, 4).bytes == b"cd"
    assert blob.get(4).bytes == b""
    blob.put(b"\x00\x01")
    with pytest.raises(TargetError) as caught:
        blob.get()
    assert "sig" not in str(caught.value)
    ranges = [headers.get("Range") for _, _, headers, _ in edge.seen]
    assert ranges == ["bytes=2-3", "bytes=4-", None, None]
    assert all(edge.url + path == url for _, path, _, _ in edge.seen)
    assert all("Authorization" not in headers for _, _, headers, _ in edge.seen)
    assert edge.seen[2][2]["x-ms-blob-type"] == "BlockBlob" and edge.seen[2][3] == b"\x00\x01"


def test_unknown_workspace_is_refused(tmp_path):
    with pytest.raises(CommandError, match="No workspace 'w' is connected"):
        Cloud(tmp_path).workspace("w")


def test_token_identity_is_read():
    import base64

    def token(**claims):
        part = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
        return f"e30.{part}.x"

    assert identity(token(upn="a@b", tid="t")) == {"user": "a@b", "tenant": "t"}
    assert identity(token(appid="g", app_displayname="ci"))["user"] == "ci (g)"
    assert identity("nonsense") == {"user": "", "tenant": ""}


def test_retry_policy_of_rest_sdk_and_sign_in_is_one(monkeypatch):
    from jupyter_amltrain.azure.service import auth, http, sdk

    monkeypatch.setenv("AMLTRAIN_AZURE_BACKOFF", "0.123")
    wanted = http.retry_policy().keywords()
    assert wanted["retry_backoff_factor"] == 0.123
    assert wanted.items() <= sdk._retries().items()
    seen = {}
    monkeypatch.setattr("azure.identity.DeviceCodeCredential", lambda **keywords: seen.update(keywords))
    auth.interactive_credential("device", "", None)
    assert wanted.items() <= seen.items()
    policies = http.pipeline("https://x", None, "")._pipeline._impl_policies
    (ours,) = [policy for policy in policies if isinstance(policy, http._CoreRetryPolicy)]
    assert (ours.total_retries, ours.status_retries, ours.backoff_factor) == (5, 4, 0.123)
