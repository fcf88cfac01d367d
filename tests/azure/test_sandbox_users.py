"""The sandbox runs jobs as its owner, so nobody else may give it one."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import psutil
import pytest
import requests

from azureml_emulator.mlflow_tracking import Server
from tests.azure.conftest import ROOT, Azure
from tests.other_user import needs_root, run_as_other_user

DEADLINE = 120.0
SECRETS = ("AZURE_CLIENT_SECRET", "HTTPS_PROXY")


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """``make azure-sandbox`` of a person: its folder, its output, its process."""
    base = tmp_path_factory.mktemp("explained")
    base.chmod(0o755)
    folder = base / "azure-sandbox"
    folder.mkdir(mode=0o755)
    (folder / "environ.sh").write_text("export OLD=1\n")  # as an earlier version left it
    (folder / "environ.sh").chmod(0o644)
    line = [sys.executable, "-m", "azureml_emulator.sandbox", "--explain", str(folder)]
    old = os.umask(0o022)
    process = subprocess.Popen(line, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    os.umask(old)
    assert process.stdin is not None and process.stdout is not None
    output = ""
    while "Fault injection" not in output and (more := process.stdout.readline()):
        output += more
    yield SimpleNamespace(folder=folder, output=output, pid=process.pid)
    process.stdin.close()
    process.wait(DEADLINE)


def environ_of(folder: Path) -> dict[str, str]:
    show = f'. "{folder}/environ.sh" && "{sys.executable}" -c "import json, os; print(json.dumps(dict(os.environ)))"'
    done = subprocess.run(["/bin/sh", "-c", show], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def ports_of(pid: int) -> list[int]:
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    connections = [one for process in processes for one in process.net_connections("tcp")]
    return sorted({one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN})


@pytest.mark.thorough
def test_sandbox_environment_signs_owner_in(explained):
    env = environ_of(explained.folder)
    form = {
        "grant_type": "client_credentials",
        "client_id": env["AZURE_CLIENT_ID"],
        "client_secret": env["AZURE_CLIENT_SECRET"],
        "scope": "https://management.azure.com/.default",
    }
    url = f"https://login.microsoftonline.com/{env['AZURE_TENANT_ID']}/oauth2/v2.0/token"
    with requests.Session() as session:
        session.trust_env = False
        session.proxies, session.verify = {"https": env["HTTPS_PROXY"]}, env["SSL_CERT_FILE"]
        assert session.post(url, data=form, timeout=DEADLINE).json()["access_token"]


@pytest.mark.thorough
def test_sandbox_files_are_private(explained):
    assert stat.S_IMODE(explained.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((explained.folder / "environ.sh").stat().st_mode) == 0o600
    certificates = Path(environ_of(explained.folder)["SSL_CERT_FILE"]).parent
    assert stat.S_IMODE(certificates.stat().st_mode) == 0o700


@pytest.mark.thorough
def test_sandbox_secrets_are_new_at_each_start(azure: Azure, explained):
    env = environ_of(explained.folder)
    for name in SECRETS:
        assert env[name] != azure.environ[name]
    paths = [urlsplit(azure._control).path, urlsplit(explained.output.split("Fault injection: ")[1].split()[0]).path]
    assert paths[0] != paths[1] and all(len(path) > 40 for path in paths)


@pytest.mark.parametrize("path", ["/secrets", "/switch", "//secrets", "/x/secrets", "/secrets/"])
def test_sandbox_control_without_secret_refuses(azure: Azure, path):
    port = urlsplit(azure._control).port
    answer = requests.post(f"http://127.0.0.1:{port}{path}", json={}, timeout=DEADLINE)
    assert (answer.status_code, answer.content[:40]) == (403, b"403: Forbidden") or not answer.content


@pytest.mark.parametrize("user", ["", "sandbox:guess@", "sandbox:@"])
def test_sandbox_proxy_without_password_refuses(azure: Azure, user):
    port = urlsplit(azure.environ["HTTPS_PROXY"]).port
    url = f"https://login.microsoftonline.com/{azure.tenant}/oauth2/v2.0/authorize?redirect_uri=http://x"
    with requests.Session() as session:
        session.trust_env = False
        session.proxies, session.verify = {"https": f"http://{user}127.0.0.1:{port}"}, azure.environ["SSL_CERT_FILE"]
        with pytest.raises(requests.exceptions.ProxyError, match="407"):
            session.get(url, timeout=DEADLINE)


#: As another user, with what a person may have shown to him, or without: whatever the ports answer.
INTRUDE = r"""
known = json.loads(sys.argv[1])
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
FORM = urllib.parse.urlencode({"grant_type": "client_credentials", "client_id": known["client"],
                               "client_secret": known["client_secret"], "scope": "https://management.azure.com/.default"})
REQUESTS = [
    ("POST", "login.microsoftonline.com", "/%s/oauth2/v2.0/token" % known["tenant"], FORM),
    ("GET", "login.microsoftonline.com", "/%s/oauth2/v2.0/authorize?redirect_uri=http://x" % known["tenant"], None),
    ("PUT", "management.azure.com", known["job"], "{}"),
    ("GET", "amltrainstore.blob.core.windows.net", "/?comp=list", None),
]
found = []
def ask(port, tls, tunnel, host, method, path, body):
    headers = {"Host": host, "Content-Type": "application/x-www-form-urlencoded"}
    try:
        if tunnel:
            raw = socket.create_connection(("127.0.0.1", port), 20)
            text = "CONNECT %s:443 HTTP/1.1\r\n" % host
            text += "Proxy-Authorization: Basic %s\r\n\r\n" % base64.b64encode(known["proxy"].encode()).decode()
            raw.sendall(text.encode())
            head = raw.recv(4096)
            if b" 200 " not in head.split(b"\r\n")[0]:
                return "tunnel " + head.split(b"\r\n")[0].decode()
            connection = http.client.HTTPSConnection(host, context=context)
            connection.sock = context.wrap_socket(raw, server_hostname=host)
        elif tls:
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return "%d %d" % (answer.status, len(answer.read()) if answer.status < 400 else 0)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
for port in known["ports"]:
    for tls, tunnel in ((0, 0), (1, 0), (0, 1)):
        for method, host, path, body in REQUESTS:
            found.append([port, ask(port, tls, tunnel, host, method, path, body)])
        for path in ("/secrets", known["control"] + "/secrets"):
            found.append([port, ask(port, tls, tunnel, "127.0.0.1", "POST", path, "{}")])
for path in known["files"]:
    try:
        open(path).close()
        found.append([path, "200 file"])
    except OSError as error:
        found.append([path, type(error).__name__])
print(json.dumps(found))
"""


@needs_root
@pytest.mark.parametrize("with_secrets", [False, True], ids=["with guesses", "with the secrets"])
def test_sandbox_other_user_gets_nothing(explained, with_secrets):
    env = environ_of(explained.folder)
    control = urlsplit(explained.output.split("Fault injection: ")[1].split()[0]).path
    proxy = urlsplit(env["HTTPS_PROXY"])
    known = {
        "ports": ports_of(explained.pid),
        "tenant": env["AZURE_TENANT_ID"],
        "client": env["AZURE_CLIENT_ID"],
        "client_secret": env["AZURE_CLIENT_SECRET"] if with_secrets else "emulated-client-secret",
        "proxy": f"{proxy.username}:{proxy.password}" if with_secrets else "sandbox:guess",
        "control": control if with_secrets else "",
        "job": "/subscriptions/s/resourceGroups/ml/providers/Microsoft.MachineLearningServices/workspaces/w/jobs/x",
        "files": [str(explained.folder / "environ.sh"), env["SSL_CERT_FILE"]],
    }
    done = run_as_other_user(INTRUDE, json.dumps(known))
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(known["ports"]) == 3  # proxy, control endpoint, Azurite: nothing else listens
    assert [one for one in answers if one[1].startswith(("2", "3"))] == []


@pytest.mark.thorough
def test_sandbox_mlflow_listens_on_no_port():
    async def started() -> tuple[list[int], int, int]:
        server = Server()
        try:
            await server.ready()
            assert server.folder is not None and server._process is not None
            status, _ = await server.ask("GET", "/health")
            return ports_of(server._process.pid), status, stat.S_IMODE(server.folder.stat().st_mode)
        finally:
            server.stop()

    # In a thread of its own: Playwright may have left a loop running in this one.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, started()).result(120) == ([], 200, 0o700)
