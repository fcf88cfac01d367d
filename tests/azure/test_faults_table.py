"""Every fault at every stage before a run: one line that says what, where and what next, and nothing left behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.azure.conftest import Azure
from tests.azure.notebook_session import SIZE, NotebookSession, session_of, until

MANY = 1_000_000


class Stage(NamedTuple):
    """A cell, and the requests of it that a fault hits."""

    cell: str
    hits: str
    asks: str = ""  #: words for what was asked, where the service is at fault


STAGES = {
    "connect": Stage("CONNECT", r"GET management\.azure\.com/\S+/workspaces/ml-dev\?"),
    "sign-in": Stage("CONNECT", r"login\.microsoftonline\.com"),
    "computes": Stage("%aml_compute test cpu", r"GET management\S+/computes/cpu"),
    "sizes": Stage("%aml_compute sizes", r"/vmSizes"),
    "quota": Stage("%aml_compute quota", r"/usages"),
    "create": Stage(
        f"%aml_compute create new-NAME --kind amlcompute --size {SIZE} --yes --wait", r"PUT management\S+/computes/"
    ),
    "look": Stage("%%aml_submit --name NAME\nprint('NAME')", r"GET management\S+/codes/"),
    "address": Stage("%%aml_submit --name NAME\nprint('NAME')", r"POST \S+/startPendingUpload"),
    "upload": Stage("%%aml_submit --name NAME\nprint('NAME')", r"PUT \S+\.blob\."),
    "register": Stage("%%aml_submit --name NAME\nprint('NAME')", r"PUT management\S+/codes/"),
    "put": Stage("%%aml_submit --name NAME\nprint('NAME')", r"PUT management\S+/jobs/"),
    "list": Stage("%aml_runs list --target cpu", r"GET management\S+/jobs\?"),
    "attach": Stage("%aml_runs attach cpu/elsewhere-22222", r"GET management\S+/jobs/elsewhere"),
    "model": Stage("%aml_model register there --run warm --path outputs/m.txt", r"PUT management\S+/models/"),
    "models": Stage("%aml_model list", r"GET management\S+/models"),
    "delete": Stage("%aml_runs delete --force warm", r"/runs/warm"),
    "away": Stage("%aml_compute delete spare --yes --wait", r"DELETE management\S+/computes/"),
}


def arm(code: str, text: str = "It did not go well.") -> dict[str, Any]:
    return {"error": {"code": code, "message": text}}


FORBIDDEN = arm(
    "AuthorizationFailed",
    "The client 'x' with object id 'y' does not have authorization to perform action"
    " 'Microsoft.MachineLearningServices/workspaces/jobs/write' over scope '/subscriptions/s/workspaces/ml-dev' or the"
    " scope is invalid.",
)
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "401": ({"status": 401, "body": arm("ExpiredAuthenticationToken")}, r"rejected the sign-in.* Sign in"),
    "403": ({"status": 403, "body": FORBIDDEN}, r"lacks? the permission Microsoft\.\S+ on 'ml-dev'\. \S+"),
    "409": ({"status": 409, "body": arm("Conflict")}, r"another change is in progress.* Try again in a minute"),
    "429": ({"status": 429, "body": arm("TooManyRequests")}, r"throttling requests.* Try again later"),
    "500": ({"status": 500, "body": arm("InternalServerError")}, r"server error \(500.* Try again"),
    "503": ({"status": 503, "body": "<html>Service Unavailable</html>"}, r"server error \(503\).* Try again"),
    "cut": ({"cut": 0}, r"connection to Azure.* was cut\. \S+"),
}
#: What is shown where it hits another service than Azure ML's own.
ELSEWHERE = {
    ("sign-in", "401"): "refused the sign-in",
    ("sign-in", "403"): "refused the sign-in",
    ("sign-in", "409"): "refused the sign-in",
    ("sign-in", "429"): "refused the sign-in",
    ("sign-in", "500"): "refused the sign-in",
    ("sign-in", "503"): "refused the sign-in",
    ("sign-in", "cut"): "connection to Azure.* was cut",
    ("upload", "403"): "storage of the workspace lab .* signature.* Try again",
}
#: Where the runs that are known here are shown, with the reason why they may have changed.
LISTED = [("list", fault) for fault in ("429", "500", "503", "cut")]
#: Where a refused submit could leave most behind, every fault is of the fast tier; elsewhere one by turns.
ALL = ("put",)
ROWS = [
    pytest.param(
        stage,
        fault,
        id=f"{stage}-{fault}",
        marks=() if stage in ALL or (2 * at - number) % len(FAULTS) == 0 else pytest.mark.thorough,
    )
    for at, stage in enumerate(STAGES)
    for number, fault in enumerate(FAULTS)
]


@pytest.fixture(scope="module")
def desk(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NotebookSession]:
    """A workspace with two clusters, a run that has ended, and a model."""
    with session_of(azure, tmp_path_factory.mktemp("faults")) as made:
        assert made.connect().error is None
        made.cluster("spare")
        made.cluster()
        made.good(
            "%%aml_submit --name warm --as run --wait\nimport os\nos.makedirs('outputs', exist_ok=True)\n"
            "open('outputs/m.txt', 'w').write('m')"
        )
        made.good("%aml_model register there --run warm --path outputs/m.txt")
        yield made


def targets(desk: NotebookSession) -> str:
    """Those that the next kernel would find."""
    return (desk.home / "targets.json").read_text()


def forget(desk: NotebookSession) -> None:
    """Sizes and quotas are remembered for a while."""
    for kept in (desk.home / "azure" / ".kept").glob("*.json"):
        kept.unlink()


@pytest.mark.thorough
@pytest.mark.parametrize(("stage", "fault"), ROWS)
def test_azure_error_is_one_line_and_leaves_nothing(desk: NotebookSession, stage: str, fault: str) -> None:
    what, words = FAULTS[fault]
    name = f"{stage}-{fault}"
    cell = STAGES[stage].cell.replace("NAME", name).replace("CONNECT", desk.connect_line)
    if stage in ("sizes", "quota"):
        forget(desk)
    jobs, made = desk.jobs(), targets(desk)
    desk.azure.control("/fault", match=STAGES[stage].hits, times=MANY, **what)
    try:
        message = desk.good(cell).text if (stage, fault) in LISTED else desk.bad(cell)
    finally:
        desk.steady()
    assert re.search(ELSEWHERE.get((stage, fault), words), message), message
    assert desk.jobs() == jobs  # nothing was half submitted
    assert targets(desk) == made
    assert {row["name"] for row in desk.azure.control("/billing")} <= {"cpu", "spare"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "stage", ["put", *(pytest.param(s, marks=pytest.mark.thorough) for s in ("connect", "list", "create"))]
)
@pytest.mark.parametrize(
    "fault",
    [{"status": 503}, {"status": 429}, {"status": 429, "headers": {"Retry-After": "1"}}, {"cut": 0}, {"cut": 30}],
    ids=["503", "429", "429-wait", "cut", "cut-late"],
)
def test_transient_azure_error_is_retried_once(desk: NotebookSession, stage: str, fault: dict[str, Any]) -> None:
    """A retry, or a check whether it was done anyway; never done twice."""
    number = len(desk.outputs)
    cell = STAGES[stage].cell.replace("NAME", f"ok{number}").replace("CONNECT", desk.connect_line)
    before = desk.jobs()
    desk.azure.control("/fault", match=STAGES[stage].hits, times=1, **fault)
    desk.good(cell)
    assert len(desk.jobs()) == len(before) + (stage == "put")
    assert not desk.azure.control("/faults")["waiting"]
    if stage == "create":
        desk.good(f"%aml_compute delete new-ok{number} --yes --wait")


@pytest.mark.thorough
@pytest.mark.parametrize("revoked", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["over", "revoked"])
def test_refused_token_during_run_is_renewed(desk: NotebookSession, revoked: bool) -> None:
    desk.good(f"%%aml_submit --name long-{revoked} --as long\nimport time\nfor i in range(12):\n"
              "    print(i, flush=True)\n    time.sleep(0.1)")  # fmt: skip
    run = desk.shell.user_ns["long"]
    until(lambda: "1\n" in run.logs())
    desk.azure.control("/expire-tokens", revoked=revoked)
    desk.good(f"%%aml_submit --name after-{revoked}\nprint(1)")  # by the SDK's own client, too
    desk.good("%aml_compute list")
    run.wait(30)
    # The job's own token is refused too: its agent says so once, and goes on.
    assert re.sub("^amltrain: .*\n", "", run.logs(), flags=re.M) == "".join(f"{i}\n" for i in range(12))
    assert run.run.reachable


def test_submit_as_reader_names_role(desk: NotebookSession) -> None:
    desk.azure.control("/switch", authorization="reader")
    jobs = desk.jobs()
    try:
        message = desk.bad("%%aml_submit --name reader\nprint('reader')")
        assert "lack" in message and "AzureML Data Scientist" in message
        message = desk.bad(f"%aml_compute create mine --kind amlcompute --size {SIZE} --yes --wait")
        assert "computes/write" in message and "AzureML Compute Operator" in message
        desk.good("%aml_runs list --target cpu")
    finally:
        desk.steady()
    assert desk.jobs() == jobs


@pytest.mark.thorough
@pytest.mark.parametrize("stage", ["list", "connect", "put"])
def test_slow_answer_is_timeout_or_confirmed(desk: NotebookSession, stage: str) -> None:
    """After a submit we look whether it came through: here it did.

    The others are slow until the end of the test: the target's own poller asks for the list, too.
    """
    desk.azure.control("/fault", match=STAGES[stage].hits, times=3 if stage == "put" else MANY, delay=1.5)
    cell = STAGES[stage].cell.replace("NAME", "slow").replace("CONNECT", desk.connect_line)
    before = desk.jobs()
    try:
        if stage != "put":
            assert "in time" in (desk.good(cell).text if stage == "list" else desk.bad(cell))
        else:
            desk.good(cell + "\n")
            until(lambda: len(desk.jobs()) == len(before) + 1)
    finally:
        desk.steady()


@pytest.mark.thorough
def test_slow_connection_succeeds(desk: NotebookSession) -> None:
    desk.azure.control("/fault", match=STAGES["list"].hits, times=1, rate=20_000)
    desk.good(STAGES["list"].cell)


@pytest.mark.thorough
def test_long_retry_after_fails_at_once_and_is_kept(desk: NotebookSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody sits before a cell for 100 s, and what is refused counts as a request: none is sent meanwhile."""
    monkeypatch.setenv("AMLTRAIN_AZURE_MAX_WAIT", "0.5")
    wait = {"status": 429, "headers": {"Retry-After": "9"}}

    def listed() -> str:
        """The list, which fails only where no run of the target is known."""
        cell = desk.cell(STAGES["list"].cell)
        return f"{cell.text}{cell.error or ''}"

    desk.azure.control("/fault", match=STAGES["list"].hits, times=1, **wait)
    assert re.search(r"asks to wait 9 s\. Try again later", listed())
    desk.jobs()
    assert re.search(r"asks to wait \d s", listed())
    assert not [w for w in desk.wire() if w["path"].endswith("/jobs")]
    until(lambda: "asks to wait" not in listed())
    desk.azure.control("/fault", match=STAGES["put"].hits, times=1, **wait)
    assert "asks to wait 9 s" in desk.bad("%%aml_submit --name patient\nprint('patient')")


def test_azure_errors_leak_no_secret(desk: NotebookSession) -> None:
    """Of all that happened in this file."""
    assert desk.azure.control("/problems")["problems"] == []
    desk.no_secret()
