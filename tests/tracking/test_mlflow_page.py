"""MLflow's page: for its owner only, on the project's store only, and not for ever."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode, urlsplit

import psutil
import pytest

from jupyter_amltrain.agent.mlflow.project_server import SECRET_HEADER
from jupyter_amltrain.state_dir import project_store
from jupyter_amltrain.tracking import page_proxy, ui
from tests.agent.conftest import until
from tests.other_user import needs_root, run_as_other_user

pytestmark = pytest.mark.thorough

DEADLINE = 120.0
ROOT = Path(__file__).resolve().parents[2]

#: Makes a store; prints ids. One run is ordinary, others lead out of the store in every way that MLflow knows.
MAKE = r"""
import json, os, sys
from pathlib import Path
import sqlalchemy
from jupyter_amltrain.tracking.mlflow_store import TrackingStore, artifact_root

project, outside = Path(sys.argv[1]), sys.argv[2]
(project / ".amltrain").mkdir()
with TrackingStore(project) as store:
    m = store.mlflow
    def run(experiment):
        made = m.create_run(str(experiment), "me", 0, [], "a run")
        return made.info.run_id, Path(made.info.artifact_uri.removeprefix("file://"))
    ids = {"experiment": m.create_experiment("numbers", None, [])}
    ids["run"], folder = run(ids["experiment"])
    folder.mkdir(parents=True)
    (folder / "model.txt").write_text("weights")
    os.symlink(outside, folder / "folder")
    os.symlink(outside + "/key", folder / "file")
    ids["elsewhere"], _ = run(m.create_experiment("elsewhere", Path(outside).as_uri(), []))
    ids["path"], _ = run(ids["experiment"])
    ids["linked"], linked = run(ids["experiment"])
    linked.parent.mkdir(parents=True)
    os.symlink(outside, linked)
    with store.mlflow.engine.begin() as connection:
        change = sqlalchemy.text("UPDATE runs SET artifact_uri = :uri WHERE run_uuid = :run")
        connection.execute(change, {"uri": outside, "run": ids["path"]})
    ids["remote"], _ = run(m.create_experiment("remote", "http://127.0.0.1:9/store", []))
    ids["proxied"], _ = run(m.create_experiment("proxied", "mlflow-artifacts:/1", []))
print(json.dumps(ids))
"""


class Page:
    """A browser of a few lines: cookies, and headers as a page of the same origin sends them."""

    def __init__(self, url: str, **headers: str) -> None:
        self.url = url
        parts = urlsplit(url)
        self.base = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self.headers = {"Sec-Fetch-Site": "same-origin", **headers}
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor()
        )

    def ask(self, path: str, body: Any = None, method: str | None = None, **headers: str) -> tuple[int, bytes, Any]:
        """Status, body and headers of the answer to a path below the page, or to a whole address."""
        url = path if "://" in path else self.base + path
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **self.headers, **headers}
        request = urllib.request.Request(url, data, {k: v for k, v in given.items() if v}, method=method)
        try:
            with self._opener.open(request, timeout=DEADLINE) as answer:
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read(), error.headers

    def experiments(self, **headers: str) -> tuple[int, bytes, Any]:
        return self.ask("ajax-api/2.0/mlflow/experiments/search", {"max_results": 100}, **headers)

    def artifact(self, run: str, path: str) -> tuple[int, bytes, Any]:
        return self.ask("get-artifact?" + urlencode({"run_uuid": run, "path": path}))

    def upload(self, run: str, path: str) -> tuple[int, bytes, Any]:
        query = urlencode({"run_uuid": run, "path": path})
        return self.ask(f"ajax-api/2.0/mlflow/upload-artifact?{query}", b"evil")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A project with a store, and beside it what nobody may reach through its page."""
    folder = tmp_path_factory.mktemp("page")
    project, outside = folder / "project", folder / "outside"
    project.mkdir(), outside.mkdir()
    (outside / "key").write_text("secret of the owner")
    line = [sys.executable, "-c", MAKE, str(project), str(outside)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr[-3000:]
    ids = SimpleNamespace(**json.loads(done.stdout.splitlines()[-1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AMLTRAIN_HOME", str(folder / "home"))
        patch.delenv(page_proxy.FOLDER_VARIABLE, raising=False)
        patch.delenv("JUPYTERHUB_SERVICE_PREFIX", raising=False)
        yield SimpleNamespace(project=str(project), outside=outside, ids=ids, home=folder / "home")


@pytest.fixture(scope="module")
def started(stage):
    started = ui.start(stage.project)
    yield started
    assert ui.stop(stage.project) == {"stopped": True}


@pytest.fixture
def page(started) -> Page:
    page = Page(started["url"])
    assert page.ask(page.url)[0] == 200
    return page


@pytest.fixture
def untouched(stage):
    """Nothing outside of the store has changed at the end of the test."""
    yield stage.outside
    assert sorted(path.name for path in stage.outside.iterdir()) == ["key"]
    assert (stage.outside / "key").read_text() == "secret of the owner"


# -- who gets in


def test_mlflow_ui_with_token_shows_runs(page, stage):
    status, body, _ = page.ask("")
    assert status == 200 and b"<title>MLflow</title>" in body
    status, body, _ = page.experiments()
    assert status == 200 and b"numbers" in body
    assert page.artifact(stage.ids.run, "model.txt")[:2] == (200, b"weights")


def test_token_address_sets_strict_cookie(started):
    status, body, headers = Page(started["url"]).ask(started["url"])
    assert status == 200 and b"location.replace" in body
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert urlsplit(started["url"]).query.partition("=")[2] not in cookie


def test_expired_token_is_refused(stage, started):
    from jupyter_amltrain.tracking.page_server import is_token, new_token

    record = page_proxy.read_record(stage.home / "pages", page_proxy.key_of(stage.project))
    assert is_token(record, new_token(record)) and not is_token(record, new_token(record, -1))
    page = Page(started["url"])
    assert page.ask("?" + urlencode({"token": new_token(record, -1)}))[0] == 403
    until_then = new_token(record).partition(".")[0]
    for guess in ("", ".", until_then, f"{until_then}.{'0' * 64}", "9" * 4400 + ".x"):
        assert page.ask("?" + urlencode({"token": guess}))[0] == 403


@pytest.mark.parametrize("host", ["", "evil.example", "localhost", "127.0.0.1"])
@pytest.mark.parametrize("origin", ["", "null", "http://localhost:9", "http://127.0.0.1:{port}"])
@pytest.mark.parametrize("cookie", ["", "amltrain-mlflow-{port}=guess", "amltrain-mlflow-{port}="])
def test_request_without_token_is_refused(started, host, origin, cookie):
    port = urlsplit(started["url"]).port
    headers = {"Host": host, "Origin": origin.format(port=port), "Cookie": cookie.format(port=port)}
    page = Page(started["url"], **headers)
    assert page.ask("")[0] in (400, 403)
    status, body, _ = page.experiments()
    assert status in (400, 403) and b"numbers" not in body
    assert page.ask("/health".removeprefix("/"))[0] in (400, 403)
    assert page.ask(f"http://127.0.0.1:{port}/")[0] in (400, 403, 404)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "", "Origin": "http://localhost:9"},
        {"Sec-Fetch-Site": "", "Origin": "null"},
        {"Sec-Fetch-Site": ""},
    ],
)
def test_cross_site_change_with_cookie_is_refused(page, headers):
    assert page.experiments(**headers)[0] == 403
    assert page.experiments()[0] == 200


#: As another user: whatever the page's ports and sockets answer to every guess.
INTRUDE = r"""
ports, unix, key = json.loads(sys.argv[1])
found = []
for port in ports:
    for host in ("127.0.0.1:%d" % port, "localhost", "evil.example"):
        for headers in ({}, {"Origin": "http://" + host}, {"Cookie": "amltrain-mlflow-%d=x" % port}):
            for prefix in ("", "/" + key, "/amltrain/mlflow/" + key):
                for method, path in (
                    ("GET", "/"),
                    ("GET", "/health"),
                    ("POST", "/ajax-api/2.0/mlflow/experiments/search"),
                    ("POST", "/api/2.0/mlflow/experiments/create"),
                ):
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
                    try:
                        body = json.dumps({"max_results": 10, "name": "intruder"}) if method == "POST" else None
                        connection.request(method, prefix + path, body, {"Host": host, **headers})
                        found.append(connection.getresponse().status)
                    except OSError as error:
                        found.append(type(error).__name__)
                    connection.close()
for path in unix:
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(path)
        found.append("connected")
    except OSError as error:
        found.append(type(error).__name__)
print(json.dumps(sorted(set(map(str, found)))))
"""


def listening(pid: int) -> tuple[list[int], list[str]]:
    """Ports and Unix sockets of a process and its children."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    connections = [c for process in processes for c in process.net_connections("all")]
    ports = [c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN]
    return ports, [c.laddr for c in connections if isinstance(c.laddr, str) and c.laddr]


@needs_root
def test_other_user_gets_no_answer(started, stage, untouched):
    ports, unix = listening(started["pid"])
    assert ports == [urlsplit(started["url"]).port]
    key = urlsplit(started["url"]).path.strip("/") or "x"
    done = run_as_other_user(INTRUDE, json.dumps([ports, unix, key]))
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    # The connection is closed before a byte of it is read.
    assert set(answers) <= {"ConnectionResetError", "RemoteDisconnected", "BrokenPipeError", "PermissionError"}
    page = Page(started["url"])
    page.ask(page.url)
    assert b"intruder" not in page.experiments()[1]


@needs_root
def test_other_user_with_token_gets_no_answer(started):
    script = "urllib.request.urlopen(sys.argv[1], timeout=20)"
    done = run_as_other_user(script, started["url"])
    assert done.returncode != 0 and ("RemoteDisconnected" in done.stderr or "ConnectionReset" in done.stderr)


def test_mlflow_process_without_secret_refuses(started):
    _, unix = listening(started["pid"])
    assert len(unix) == 1 and os.stat(unix[0]).st_mode & 0o777 == 0o600
    assert os.stat(Path(unix[0]).parent).st_mode & 0o777 == 0o700
    for headers in ({}, {SECRET_HEADER: "guess"}):
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(unix[0])
        connection.request("GET", "/health", headers=headers)
        assert connection.getresponse().status == 403
        connection.close()


# -- what can be reached


@pytest.mark.parametrize(
    ("run", "path"),
    [
        ("run", "file"),
        ("run", "folder/key"),
        ("run", "../../../../../outside/key"),
        ("run", "%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/outside/key"),
        ("run", "{outside}/key"),
        ("elsewhere", "key"),
        ("path", "key"),
        ("linked", "key"),
        ("remote", "key"),
        ("proxied", "key"),
    ],
)
def test_artifact_outside_store_is_refused(page, stage, untouched, run, path):
    run, path = getattr(stage.ids, run), path.format(outside=stage.outside)
    status, body, _ = page.artifact(run, path)
    assert status >= 400 and b"secret" not in body
    page.upload(run, path)
    page.upload(run, str(Path(path).parent / "new"))
    status, body, _ = page.ask("ajax-api/2.0/mlflow/artifacts/list?" + urlencode({"run_uuid": run, "path": "folder"}))
    assert b"key" not in body


def test_upload_through_outside_link_is_refused(page, stage, untouched):
    assert page.upload(stage.ids.run, "file")[0] >= 400
    assert page.upload(stage.ids.run, "folder/new")[0] >= 400
    assert page.upload(stage.ids.run, "new.txt")[0] == 200
    assert page.artifact(stage.ids.run, "new.txt")[:2] == (200, b"evil")


@pytest.mark.parametrize("location", ["{uri}", "{path}", "s3://bucket/x", "file://host{path}", "mlflow-artifacts:/x"])
@pytest.mark.parametrize("api", ["api", "ajax-api"])
def test_experiment_with_outside_artifacts_is_refused(page, stage, location, api):
    where = location.format(uri=stage.outside.as_uri(), path=stage.outside)
    body = {"name": f"new {location} {api}", "artifact_location": where}
    assert page.ask(f"{api}/2.0/mlflow/experiments/create", body)[0] >= 400
    assert page.ask(f"{api}/2.0/mlflow/experiments/create", {"name": f"plain {location} {api}"})[0] == 200


def test_model_version_from_outside_gives_no_file(page, stage, untouched):
    assert page.ask("ajax-api/2.0/mlflow/registered-models/create", {"name": "m"})[0] == 200
    for run, source in (
        (stage.ids.elsewhere, stage.outside.as_uri()),
        (stage.ids.linked, str(stage.outside)),
        (stage.ids.run, str(stage.outside)),
    ):
        version = {"name": "m", "source": source, "run_id": run}
        page.ask("ajax-api/2.0/mlflow/model-versions/create", version)
    for number in range(1, 4):
        query = urlencode({"name": "m", "version": number, "path": "key"})
        status, body, _ = page.ask(f"model-versions/get-artifact?{query}")
        assert status >= 400 and b"secret" not in body


def test_mlflow_artifact_proxy_is_disabled(page, untouched):
    for api in ("api", "ajax-api"):
        path = f"{api}/2.0/mlflow-artifacts/artifacts/key"
        assert page.ask(path)[0] >= 400 and page.ask(path, b"evil", "PUT")[0] >= 400


def test_html_artifact_is_sandboxed(page, stage):
    assert page.upload(stage.ids.run, "page.html")[0] == 200
    _, _, headers = page.artifact(stage.ids.run, "page.html")
    assert "sandbox" in headers["Content-Security-Policy"] and headers["X-Content-Type-Options"] == "nosniff"


# -- how long


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def same_store(stage: SimpleNamespace, project: Path) -> str:
    """Another project with the same store."""
    (project / ".amltrain").symlink_to(project_store(stage.project))
    return str(project)


@pytest.fixture
def other(stage, tmp_path):
    """A project for a page of this test."""
    project = same_store(stage, tmp_path)
    yield project
    ui.stop(project)


def test_idle_mlflow_ui_ends(other, monkeypatch):
    monkeypatch.setenv("AMLTRAIN_UI_IDLE", "1")
    started = ui.start(other)
    until(lambda: gone(started["pid"]), "the end of the page")
    record = page_proxy.record_path(Path(os.environ["AMLTRAIN_HOME"], "pages"), page_proxy.key_of(other))
    until(lambda: not record.exists(), "the end of its record")
    monkeypatch.delenv("AMLTRAIN_UI_IDLE")
    assert ui.start(other)["pid"] != started["pid"]


def test_concurrent_mlflow_ui_starts_share_process(other):
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda project: ui.start(project), [other, other]))
    assert ui.start(other)["pid"] in {one["pid"] for one in both}
    for one in both:
        page = Page(one["url"])
        page.ask(page.url)
        assert page.experiments()[0] == 200


def test_mlflow_ui_of_killed_kernel_ends(other):
    code = (
        "import sys; from jupyter_amltrain.tracking import ui; print(ui.start(sys.argv[1])['pid'], flush=True); input()"
    )
    line = [sys.executable, "-c", code, other]
    owner = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    until(lambda: gone(pid), "the end of the page")


def test_mlflow_ui_of_terminal_ends_with_shell(other):
    code = "import sys; from jupyter_amltrain.tracking import ui; print(ui.start(sys.argv[1], keep=True)['pid'])"
    shell = f'"{sys.executable}" -c "{code}" "{other}"; echo done; read line'
    terminal = subprocess.Popen(
        ["/bin/sh", "-c", shell],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    assert terminal.stdout is not None
    pid = int(terminal.stdout.readline())
    assert terminal.stdout.readline() == "done\n"
    assert ui.start(other)["reused"]
    assert not gone(pid)
    terminal.kill()
    terminal.communicate()
    until(lambda: gone(pid), "the end of the page")


def test_mlflow_ui_ignores_planted_module(other, tmp_path, monkeypatch):
    from tests.rpc.test_child_process import plant

    notebook = tmp_path / "notebook"
    ran = plant(notebook)
    monkeypatch.chdir(notebook)
    monkeypatch.setenv("PYTHONPATH", "")
    started = ui.start(other)
    page = Page(started["url"])
    page.ask(page.url)
    assert page.experiments()[0] == 200
    assert list(ran.iterdir()) == []


def test_mlflow_ui_without_store_is_refused(tmp_path):
    from jupyter_amltrain.errors import StateError

    with pytest.raises(StateError, match="No MLflow store"):
        ui.start(str(tmp_path))


# -- through a Jupyter server


@pytest.fixture(scope="module")
def server(stage, tmp_path_factory) -> Iterator[SimpleNamespace]:
    """A real Jupyter server with our extension, and what a kernel of it finds in its environment."""
    folder = tmp_path_factory.mktemp("server")
    token = "the-server's-token".replace("'", "")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "AMLTRAIN_"))}
    env |= {"JUPYTER_CONFIG_DIR": str(folder), "JUPYTER_RUNTIME_DIR": str(folder), "AMLTRAIN_HOME": str(stage.home)}
    line = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", f"--port={port}"]
    line += [f"--IdentityProvider.token={token}", "--ServerApp.base_url=/base/", f"--ServerApp.root_dir={folder}"]
    line += ["--ServerApp.jpserver_extensions={'jupyter_amltrain': True}"]
    with open(folder / "log.txt", "wb") as log:
        process = subprocess.Popen(line, env=env, stdout=log, stderr=log, cwd=folder)
    base = f"http://127.0.0.1:{port}/base/"
    try:
        owner = Page(base, Authorization=f"token {token}")

        def ready() -> bool:
            with contextlib.suppress(OSError):
                return bool(owner.ask("api/status")[0] == 200)
            return False

        until(ready, "the server")
        kernel = json.loads(owner.ask("api/kernels", {"name": "python3"})[1])["id"]

        def kernel_folder() -> str:
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if kernel in " ".join(child.cmdline()):
                        return str(child.environ()[page_proxy.FOLDER_VARIABLE])
            return ""

        yield SimpleNamespace(base=base, token=token, folder=until(kernel_folder, "the kernel"), port=port)
    finally:
        process.terminate()
        process.wait(DEADLINE)


@pytest.fixture(scope="module")
def served(stage, server, tmp_path_factory) -> Iterator[dict[str, Any]]:
    project = same_store(stage, tmp_path_factory.mktemp("served"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(page_proxy.FOLDER_VARIABLE, server.folder)
        served = ui.start(project)
    yield served | {"key": page_proxy.key_of(project)}
    ui.stop(project)


@pytest.fixture
def signed_in(server, served) -> Page:
    """A browser that has opened JupyterLab by its token and holds its cookie."""
    page = Page(f"http://127.0.0.1:{server.port}{served['path']}")
    assert page.ask(f"{server.base}tree?token={server.token}")[0] in (200, 404)
    return page


def test_server_shows_mlflow_ui_to_signed_in_user(server, served, signed_in, stage):
    assert served["url"].startswith(f"http://localhost:{server.port}/base/") and served["url"].endswith(served["path"])
    assert listening(served["pid"])[0] == []
    status, body, _ = signed_in.ask("")
    assert status == 200 and b"<title>MLflow</title>" in body
    assert signed_in.ask(signed_in.base.rstrip("/"))[0] == 200
    script = (
        body.decode().partition('src="./')[2].partition('"')[0] or body.decode().partition('src="')[2].partition('"')[0]
    )
    assert "static-files/" in script
    assert signed_in.ask(script)[0] == 200
    status, body, headers = signed_in.experiments()
    assert status == 200 and b"numbers" in body
    assert "frame-ancestors 'self'" in headers["Content-Security-Policy"]
    assert signed_in.artifact(stage.ids.run, "model.txt")[:2] == (200, b"weights")


@pytest.mark.parametrize("cookie", ["", "_xsrf=2|1|1|1", "username-127-0-0-1=guess"])
def test_server_refuses_unauthenticated_user(server, served, cookie):
    page = Page(f"http://127.0.0.1:{server.port}{served['path']}", Cookie=cookie)
    assert b"<title>MLflow</title>" not in page.ask("")[1]
    status, body, _ = page.experiments()
    assert status == 403 and b"numbers" not in body


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "", "Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "", "Origin": "http://127.0.0.1:9"},
        {"Sec-Fetch-Site": ""},
        {"Host": "evil.example"},
    ],
)
def test_server_refuses_cross_site_changes(signed_in, headers):
    assert signed_in.experiments(**headers)[0] in (403, 404)
    assert signed_in.experiments()[0] == 200


def test_server_accepts_own_origin(server, signed_in):
    origin = f"http://127.0.0.1:{server.port}"
    assert signed_in.experiments(**{"Sec-Fetch-Site": "", "Origin": origin})[0] == 200


@needs_root
def test_other_user_cannot_use_server_or_folder(server, served, stage, untouched):
    _, unix = listening(served["pid"])
    done = run_as_other_user(INTRUDE, json.dumps([[server.port], unix, f"base/amltrain/mlflow/{served['key']}"]))
    assert done.returncode == 0, done.stderr
    # The server's own login answers; a page of MLflow's is behind it.
    assert set(json.loads(done.stdout)) <= {"302", "403", "404", "405", "PermissionError"}
    done = run_as_other_user("print(os.listdir(sys.argv[1]))", server.folder)
    assert "PermissionError" in done.stderr


def test_server_reports_stopped_mlflow_ui(server):
    page = Page(f"{server.base}amltrain/mlflow/{'0' * 16}/", Authorization=f"token {server.token}")
    status, body, _ = page.ask("")
    assert status == 503 and b"aml_runs ui" in body


def test_folder_of_ended_server_is_ignored(other, tmp_path, monkeypatch):
    folder = tmp_path / "left"
    folder.mkdir(mode=0o700)
    (folder / page_proxy.SERVER_FILE).write_text(json.dumps({"pid": 2**22 + 1, "base_url": "/", "url": "http://x/"}))
    monkeypatch.setenv(page_proxy.FOLDER_VARIABLE, str(folder))
    assert "token=" in ui.start(other)["url"]


def test_folder_readable_by_others_is_ignored(other, tmp_path, monkeypatch):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    server = {"pid": os.getpid(), "base_url": "/", "url": "http://x/"}
    (folder / page_proxy.SERVER_FILE).write_text(json.dumps(server))
    monkeypatch.setenv(page_proxy.FOLDER_VARIABLE, str(folder))
    assert "token=" in ui.start(other)["url"]


def test_server_extension_imports_nothing_heavy():
    code = (
        "import sys, jupyter_amltrain.server_extension;"
        "print([n for n in ('mlflow', 'flask', 'numpy', 'matplotlib', 'sqlalchemy', 'azure') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_installation_enables_server_extension():
    folder = ROOT / "jupyter-config" / "jupyter_server_config.d"
    config = json.loads((folder / "jupyter_amltrain.json").read_text())
    assert config["ServerApp"]["jpserver_extensions"] == {"jupyter_amltrain": True}
    assert (
        '"jupyter-config/jupyter_server_config.d" = "etc/jupyter/jupyter_server_config.d"'
        in (ROOT / "pyproject.toml").read_text()
    )


def test_mlflow_ui_behind_hub_scopes_cookie_path(stage, tmp_path, monkeypatch):
    project = same_store(stage, tmp_path)
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/me/")
    started = ui.start(project)
    try:
        port = listening(started["pid"])[0][0]
        place, _, token = started["url"].partition("?")
        key = place.removeprefix(f"/user/me/proxy/{port}/")
        page = Page(f"http://127.0.0.1:{port}/{key}", Host="hub.example.org", Origin="https://hub.example.org")
        status, _, headers = page.ask(f"?{token}")
        assert status == 200 and f"Path=/user/me/proxy/{port}/" in headers["Set-Cookie"]
        page.headers["Cookie"] = headers["Set-Cookie"].partition(";")[0]
        assert page.experiments()[0] == 200
        assert page.experiments(**{"Sec-Fetch-Site": "cross-site"})[0] == 403
        assert page.experiments(Cookie="")[0] == 403
    finally:
        ui.stop(project)
