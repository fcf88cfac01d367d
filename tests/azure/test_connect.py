"""Connecting a workspace of the emulated Azure, as a person does it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jupyter_amltrain import magics
from jupyter_amltrain.azure.client import client_of
from jupyter_amltrain.azure.commands import connect as commands
from jupyter_amltrain.azure.workspaces import WorkspaceRef
from jupyter_amltrain.demo import FakeTarget
from jupyter_amltrain.errors import AmlTrainError, AuthenticationError, CommandError, TargetUnreachable
from jupyter_amltrain.magics.display import sign_in_html
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunHandle, RunState, RunStatus

DEADLINE = 60.0


@pytest.fixture
def az(api, azure_env, monkeypatch):
    """The sandbox, with time constants of tests."""
    monkeypatch.setenv("AMLTRAIN_AZURE_BACKOFF", "0.02")
    monkeypatch.setenv("AMLTRAIN_AZURE_WARM", "-1")
    return azure_env


@pytest.fixture
def place(az):
    return WorkspaceRef(**az.where)


@pytest.fixture
def nobody(az, monkeypatch):
    """Nobody is signed in: no variables."""
    for name in ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"):
        monkeypatch.delenv(name)
    return az


@pytest.fixture
def ask(api):
    """One operation of the Azure process."""

    def request(op, **payload):
        c = api.controller()

        async def go():
            return await client_of(c.loop, c.root).request(op, payload, timeout=DEADLINE)

        return c.loop.call(go(), DEADLINE)

    return request


@pytest.fixture
def elsewhere(az):
    """Somebody who makes and deletes clusters without us, in the portal say."""
    from azure.identity import EnvironmentCredential

    from jupyter_amltrain.azure.service import cloud, http
    from jupyter_amltrain.azure.service.account import ARM_SCOPE, Account

    below = cloud.arm_id(az.subscription, az.resource_group, az.workspace)
    arm = http.Rest(cloud.ARM_HOST, below, Account(EnvironmentCredential()), ARM_SCOPE)

    def wait(name, *statuses):
        deadline = time.monotonic() + DEADLINE
        while True:
            answer = arm.get(f"computes/{name}", api=http.ARM, ok=(200, 404))
            state = answer.json["properties"]["provisioningState"] if answer.json else "Deleted"
            if state in statuses:
                return
            assert time.monotonic() < deadline
            time.sleep(0.05)

    class RemoteWorkspaces:
        def make(self, name):
            scale = {"minNodeCount": 0, "maxNodeCount": 2, "nodeIdleTimeBeforeScaleDown": "PT120S"}
            properties = {"vmSize": "STANDARD_DS2_V2", "vmPriority": "Dedicated", "scaleSettings": scale}
            body = {"location": "eastus", "properties": {"computeType": "AmlCompute", "properties": properties}}
            arm.put(f"computes/{name}", api=http.ARM, json=body)
            wait(name, "Succeeded")

        def delete(self, name):
            arm.delete(f"computes/{name}", api=http.ARM, params={"underlyingResourceAction": "Delete"})
            wait(name, "Deleted")

    return RemoteWorkspaces()


def approving(az, **how):
    """Somebody who answers the next code that is shown, and what was shown."""
    shown = []

    def show(event):
        shown.append(event)
        if event.get("kind") == "sign-in" and event.get("code"):
            az.control("/approve", user_code=event["code"], **how)

    return show, shown


# ---- who, where, what


def test_connect_result_names_user_and_workspace(api, az, place, home, ask):
    made = api.connect(place)
    assert made.facts.name == az.workspace and made.facts.tenant == az.tenant
    parts = (
        "ml-dev",
        "eastus",
        "(11111111-0000-4000-8000-000000000001)",
        "AZURE_*",
        "0 targets",
        "%aml_compute create",
    )
    assert all(part in made.message() for part in parts)
    assert made.facts.api == "https://eastus.api.azureml.ms"
    assert made.facts.tracking_uri.startswith("azureml://eastus.api.azureml.ms/mlflow/v1.0/subscriptions/")
    assert ask("workspace.whoami", workspace="ml-dev")["tenant"] == az.tenant
    written = "".join(p.read_text() for p in home.rglob("*") if p.is_file() and p.suffix in (".json", ".txt"))
    assert az.environ["AZURE_CLIENT_SECRET"] not in written and "eyJ" not in written
    wire = az.control("/wire")
    assert not az.control("/problems")["problems"] and len([one for one in wire if "/token" in one["path"]]) <= 2


def test_connect_twice_adds_targets_once(api, place, elsewhere):
    api.connect(place)
    elsewhere.make("cpu")
    made = api.connect(place)
    assert made.targets == ("cpu",) and "1 target (cpu)." in made.message()
    [target] = [t for t in api.targets() if t.name == "cpu"]
    assert (target.workspace, target.compute, target.size, target.max_nodes) == ("ml-dev", "", "STANDARD_DS2_V2", 2)
    assert api.connect(WorkspaceRef()).targets == ("cpu",)
    assert [t.name for t in api.targets()] == ["local", "cpu"]
    assert [one["name"] for one in commands.listing()] == ["ml-dev"]


@pytest.mark.thorough
def test_reconnect_renames_taken_and_removes_deleted(api, place, elsewhere):
    api.connect(place)
    api.controller().targets.add(FakeTarget(name="lab"))
    elsewhere.make("lab")
    elsewhere.make("gone")
    made = api.connect(place)
    assert sorted(made.targets) == ["gone", "ml-dev-lab"] and made.renamed == {"ml-dev-lab": "lab"}
    assert "ml-dev-lab" in made.message()
    assert next(t for t in api.targets() if t.name == "ml-dev-lab").compute == "lab"
    elsewhere.delete("gone")
    again = api.connect(place)
    assert again.removed == ("gone",) and "gone" in again.message()
    assert sorted(t.name for t in api.targets()) == ["lab", "local", "ml-dev-lab"]


def test_reconnect_keeps_target_with_live_runs(api, place, elsewhere):
    api.connect(place)
    elsewhere.make("busy")
    api.connect(place)
    c = api.controller()
    status = RunStatus(state=RunState.RUNNING)
    run = Run(handle=RunHandle("busy/x-1"), spec=JobSpec(name="x"), status=status, created=1.0)

    async def put():
        c.store.put(run)

    c.loop.call(put(), 10)
    elsewhere.delete("busy")
    made = api.connect(place)
    assert made.removed == () and "busy" in [t.name for t in api.targets()]
    with pytest.raises(CommandError, match=r"busy/x-1.*--yes"):
        api.disconnect("ml-dev")
    assert "1 target" in api.disconnect("ml-dev", confirmed=True)
    assert [t.name for t in api.targets()] == ["local"] and api.workspaces() == ([], "")


def test_several_workspaces_are_connected(api, az, place):
    az.control("/workspace", name="other")
    api.connect(place)
    other = WorkspaceRef(
        subscription=place.subscription, resource_group=place.resource_group, workspace="other", name="second"
    )
    api.connect(other)
    found, current = api.workspaces()
    assert [one.name for one in found] == ["ml-dev", "second"] and current == "second"
    api.connect(WorkspaceRef(name="ml-dev"))
    assert api.workspaces()[1] == "ml-dev"
    with pytest.raises(CommandError, match="already connected as 'second'"):
        api.connect(WorkspaceRef(subscription=other.subscription, resource_group="ML", workspace="Other", name="third"))
    with pytest.raises(CommandError, match="'secnd'.*second"):
        api.disconnect("secnd")
    table = commands.listing_text(commands.listing())
    assert "*  ml-dev" in table and "second" in table


# ---- what is refused


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"workspace": "ml-dve"}, r"'ml-dve'.* ml-dev\?"),
        ({"resource_group": "mll"}, "no resource group 'mll'"),
        ({"subscription": "50b00000-0000-4000-8000-00000000dead"}, "no subscription '50b0"),
        ({"subscription": "Emulatd"}, "'Emulatd'.*'Emulated'"),
        ({"tenant": "00000000-0000-4000-8000-00000000dead"}, "directory does not exist"),
    ],
)
def test_unknown_workspace_error_suggests_similar(api, place, change, sentence):
    import msgspec

    with pytest.raises(AmlTrainError, match=sentence):
        api.connect(msgspec.structs.replace(place, **change))
    assert api.workspaces() == ([], "")


def test_connect_by_subscription_name(api, place):
    import msgspec

    made = api.connect(msgspec.structs.replace(place, subscription="emulated"))
    assert made.facts.subscription == place.subscription


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("AZURE_CLIENT_SECRET", "wrong", "the client secret is wrong"),
        ("AZURE_CLIENT_ID", "22222222-0000-4000-8000-000000000001", "no application with that id"),
    ],
)
def test_invalid_credential_variables_are_refused(api, place, monkeypatch, name, value, sentence):
    monkeypatch.setenv(name, value)
    shown = []
    with pytest.raises(AuthenticationError, match=sentence) as caught:
        api.connect(place, shown.append)
    assert "wrong value" not in str(caught.value) and not [e for e in shown if e["kind"] == "sign-in"]


def test_connect_without_permission_names_permission(api, az, place):
    az.control("/switch", authorization="none")
    with pytest.raises(AuthenticationError, match=r"workspaces/read"):
        api.connect(place)


def test_connect_as_reader_names_missing_rights(api, az, place):
    az.control("/switch", authorization="reader")
    made = api.connect(place)
    assert all(part in made.message() for part in ("submit jobs", "create compute", "delete compute"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ({"status": 503, "times": 20}, r"server error \(503"),
        ({"status": 429, "times": 20, "headers": {"Retry-After": "900"}}, "asks to wait 900 s"),
        ({"cut": 0, "times": 20}, "was cut"),
    ],
)
def test_connect_with_service_error_is_refused(api, az, place, fault, sentence):
    az.control("/fault", match="GET management.azure.com/.*workspaces/ml-dev", **fault)
    with pytest.raises(TargetUnreachable, match=sentence):
        api.connect(place)


def test_connect_retries_transient_errors(api, az, place):
    az.control("/fault", match="GET management", status=500, times=1)
    az.control("/fault", match="GET management.*workspaces", status=429, times=1, headers={"Retry-After": "0"})
    az.control("/fault", match="GET management.*computes", cut=0, times=1)
    assert api.connect(place).facts.name == "ml-dev"


def test_connect_without_data_plane_succeeds_with_note(api, az, place):
    az.control("/fault", match="discovery", status=503, times=50)
    made = api.connect(place)
    assert "services are not responding" in made.message() and made.facts.api == "https://eastus.api.azureml.ms"


def test_expired_token_is_renewed(az, api, place, ask):
    api.connect(place)
    for revoked in (False, True):
        az.control("/expire-tokens", revoked=revoked)
        since = len(az.control("/wire"))
        assert ask("computes.list", workspace="ml-dev") == []
        statuses = [one["status"] for one in az.control("/wire")[since:] if "/computes" in one["path"]]
        assert statuses == [401, 200]


# ---- a person


def test_device_code_is_shown_and_sign_in_kept(api, nobody, place):
    show, shown = approving(nobody)
    made = api.connect(place, show)
    assert made.sign_in_method == "a device code" and made.facts.method == "device" and "ada" in made.facts.user.lower()
    events = [event for event in shown if event["kind"] == "sign-in"]
    assert [bool(event["text"]) for event in events] == [True, False]
    first = events[0]
    assert first["url"] == "https://microsoft.com/devicelogin" and first["code"] in first["text"]
    assert 800 < first["expires"] <= 900
    page = sign_in_html(first)
    assert f'href="{first["url"]}"' in page and f"<code>{first['code']}</code>" in page and "15 minutes" in page
    shown.clear()
    assert api.connect(WorkspaceRef(), show).facts.user == made.facts.user
    assert not [event for event in shown if event["kind"] == "sign-in"]  # not asked twice


def test_sign_in_survives_token_expiry(api, nobody, place, ask):
    api.connect(place, approving(nobody)[0])
    nobody.control("/expire-tokens")
    assert ask("computes.list", workspace="ml-dev") == []


@pytest.mark.thorough
def test_sign_in_of_earlier_kernel_is_requested_again(api, nobody, place, ask):
    api.connect(place, approving(nobody)[0])
    api.close()
    with pytest.raises(AuthenticationError, match=r"ml-dev"):
        ask("computes.list", workspace="ml-dev")
    assert api.connect(WorkspaceRef(), approving(nobody)[0]).facts.method == "device"


@pytest.mark.thorough
def test_device_code_expired_or_declined_is_refused(api, nobody, place):
    nobody.control("/switch", device_code_seconds=2)
    shown = []
    with pytest.raises(AuthenticationError, match="expired"):
        api.connect(place, shown.append)
    assert shown[-1] == {"kind": "sign-in", "text": "", "url": "", "code": "", "expires": 0}
    nobody.control("/switch", device_code_seconds=900)
    with pytest.raises(AuthenticationError, match="declined"):
        api.connect(place, approving(nobody, deny=True)[0])
    assert api.workspaces() == ([], "")


@pytest.mark.thorough
def test_interrupted_sign_in_ends(api, nobody, place):
    def show(event):
        if event.get("code"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.connect(place, show)
    polls = []
    deadline = time.monotonic() + DEADLINE
    while True:  # nobody polls Entra any more
        polls.append(len([one for one in nobody.control("/wire") if one["path"].endswith("/token")]))
        if len(polls) > 3 and polls[-1] == polls[-4]:
            break
        assert time.monotonic() < deadline
        time.sleep(0.6)
    assert api.connect(place, approving(nobody)[0]).facts.method == "device"


def test_sign_in_as_other_user_is_reported(api, az, place):
    before = api.connect(place).facts.user
    made = api.connect(WorkspaceRef(method="device"), approving(az)[0])
    assert made.previous_user == before != made.facts.user and f"(before: {before})" in made.message()


def test_browser_sign_in_succeeds(api, nobody, place, tmp_path, monkeypatch):
    """A browser that is signed in already: it follows the service back to the kernel's machine."""
    script = tmp_path / "browser.py"
    script.write_text(
        "import sys, urllib.parse as p, urllib.request as r\n"
        "class Stay(r.HTTPRedirectHandler):\n"
        "    def redirect_request(self, *a): return None\n"
        "try: r.build_opener(Stay).open(sys.argv[1])\n"
        "except r.HTTPError as e: back = e.headers['Location']\n"
        "place, _, query = back.partition('?')\n"
        "r.build_opener(r.ProxyHandler({})).open(place, query.encode())\n"
    )
    monkeypatch.setenv("BROWSER", f"{sys.executable} {script} %s &")
    import msgspec

    shown = []
    made = api.connect(msgspec.structs.replace(place, method="browser"), shown.append)
    assert made.sign_in_method == "a browser" and made.facts.method == "browser"
    assert "A browser window is open" in next(e["text"] for e in shown if e["kind"] == "sign-in")


# ---- what is typed


def test_config_json_is_found_in_parent_folder(api, az, place, tmp_path):
    config = {"subscription_id": az.subscription, "resource_group": az.resource_group, "workspace_name": az.workspace}
    deep = Path.cwd() / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "config.json").write_text('{"theme": "dark"}')  # somebody else's
    (Path.cwd() / ".azureml").mkdir()
    (Path.cwd() / ".azureml" / "config.json").write_text(json.dumps(config), "utf-8-sig")
    assert commands.find_config(deep) == Path.cwd() / ".azureml" / "config.json"
    args = api_parser("connect")
    assert api.connect(commands.workspace_ref(args, deep)).facts.name == "ml-dev"


def api_parser(line):
    from jupyter_amltrain.commands.registry import parser_of

    return parser_of("compute", "%aml_compute").parse(line.split())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "config.json is not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"subscription_id": "s"}', "lacks resource_group and workspace_name"),
        (
            '{"subscription_id": "<my-sub>", "resource_group": "g", "workspace_name": "w"}',
            "placeholder in subscription_id",
        ),
    ],
)
def test_invalid_config_json_is_refused(api, text, sentence):
    Path("config.json").write_text(text)
    with pytest.raises(CommandError, match=sentence):
        commands.workspace_ref(api_parser("connect --config config.json"))
    with pytest.raises(CommandError, match="No config.json|Cannot read"):
        commands.workspace_ref(api_parser("connect --config nowhere.json"))
    with pytest.raises(CommandError, match="--resource-group.*--workspace"):
        commands.workspace_ref(api_parser("connect --subscription s"))


@pytest.mark.thorough
def test_cli_connect_imports_no_azure_in_kernel(az, home):
    line = f"connect --subscription {az.subscription} --resource-group {az.resource_group} --workspace {az.workspace}"
    code = (
        "import sys\n"
        "from jupyter_amltrain.cli import main\n"
        f"codes = [main(['compute', *{line.split()!r}, '--json']), main(['compute', 'workspaces'])]\n"
        "print(codes, [m for m in sys.modules if m.split('.')[0] in ('azure', 'msal', 'mlflow', 'aiohttp')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE)
    assert done.stdout.splitlines()[-1] == "[0, 0] []", done.stdout + done.stderr
    facts = json.loads(done.stdout.splitlines()[0])["facts"]
    assert facts["name"] == "ml-dev" and "account" not in facts
    assert "Signed in as" in done.stderr and "*  ml-dev" in done.stdout


def test_interrupted_connect_magic_reports_it(api, nobody, place, monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_amltrain.magics import display

    def shower():
        def show(event):
            if event.get("code"):
                raise KeyboardInterrupt

        return show

    monkeypatch.setattr(display, "sign_in_shower", shower)  # the person presses the button when the code is there
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "jupyter_amltrain")
    try:
        line = (
            f"--subscription {place.subscription} --resource-group {place.resource_group} --workspace {place.workspace}"
        )
        error = shell.run_cell(f"%aml_compute connect {line}").error_in_exec
    finally:
        magics.unregister(shell)
    assert isinstance(error, AmlTrainError) and error.code == "interrupted"
    assert api.workspaces() == ([], "")


@pytest.mark.thorough
def test_sdk_uses_same_sign_in(az, api, place, home):
    """In a process of its own: importing the SDK takes seconds and is not for this one."""
    api.connect(place)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from jupyter_amltrain.azure.service import sdk\n"
        "from jupyter_amltrain.azure.service.cloud import Cloud\n"
        "cloud = Cloud(Path(sys.argv[1]))\n"
        "made = sdk.client(cloud, 'ml-dev')\n"
        "assert sdk.client(cloud, cloud.workspace('ml-dev')) is made\n"
        "print([sdk.field(u, 'current_value') for u in made.compute.list_usage()][0], list(made.compute.list()))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(home)], capture_output=True, text=True, timeout=DEADLINE)
    assert done.stdout.strip() == "0 []", done.stderr


def test_connect_magic_shows_and_clears_sign_in(api, nobody, place, capsys):
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()  # `display` asks whether there is one
    shell.run_line_magic("load_ext", "jupyter_amltrain")
    published = []
    publish = type(
        "Publisher", (shell.display_pub.__class__,), {"publish": lambda s, data, **k: published.append((data, k))}
    )
    shell.display_pub = publish(parent=shell)

    def approve():
        deadline = time.monotonic() + DEADLINE
        while not nobody.control("/approve")["settled"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    thread = threading.Thread(target=approve)
    thread.start()
    try:
        line = (
            f"--subscription {place.subscription} --resource-group {place.resource_group} --workspace {place.workspace}"
        )
        result = shell.run_cell(f"%aml_compute connect {line}")
        assert result.error_in_exec is None
    finally:
        thread.join()
        magics.unregister(shell)
        InteractiveShell.clear_instance()
    (first, one), (last, two) = published
    assert "https://microsoft.com/devicelogin" in first["text/plain"]
    assert "<code>" in first["text/html"]
    assert last == {"text/plain": "The sign-in has ended."} and two["update"] and one["transient"] == two["transient"]
    assert "Connected to ml-dev" in capsys.readouterr().out
