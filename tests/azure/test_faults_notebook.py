"""A notebook as it is saved, its home folder and what went over the wire: none holds anything that opens something."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.azure.conftest import Azure
from tests.azure.notebook_session import QUICK, SECRETS, SIZE
from tests.conftest import SETTINGS, end_all
from tools.notebooks import executed

pytestmark = pytest.mark.thorough

#: Of what a service may say in a refusal: the address, the token and the key that it was asked with.
CONTROL = """
import json, urllib.parse, urllib.request

def control(path, **body):
    request = urllib.request.Request({control!r} + path, json.dumps(body).encode(), method="POST")
    with urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(request) as answer:
        return json.load(answer)

def echo(match, status, times=10**6, **more):
    known = control("/secrets")
    token = next(one for one in known if one.startswith("eyJ"))
    sas = control("/sas", container="azureml")
    text = (f"The request GET {{sas['url']}}/azureml/a.txt?{{sas['sas']}} with Authorization: Bearer {{token}} failed."
            f" Source: {{urllib.parse.quote(sas['url'] + '?' + sas['sas'], safe='')}}, SharedKey a:{{known[-2]}}."
            f" accountKey={{known[-2]}}; client_secret={{known[-1]}} is wrong.")
    body = {{"error": {{"code": "UserError", "message": text}}}}
    control("/fault", match=match, status=status, times=times, body=body, headers={{"WWW-Authenticate": text}}, **more)

control("/switch", scale_seconds=0.1, create_seconds=0.05, job_seconds=0.02)
"""
STEADY = 'control("/faults", clear=True);'
JOB = """%%aml_submit --name {name} --target cpu --as {name} --out total {more}
import os, mlflow
total = 3
mlflow.log_metric("loss", 0.5)
os.makedirs("outputs", exist_ok=True)
open("outputs/m.txt", "w").write("m")
print("{name} is done")
"""


def cells(azure: Azure) -> Iterator[tuple[str, bool]]:
    """Source of each cell, and whether it fails."""
    where = f"--subscription {azure.subscription} --resource-group {azure.resource_group}"
    connect = f"%aml_compute connect {where} --workspace {azure.workspace} --name lab"
    yield "%load_ext jupyter_amltrain", False
    yield CONTROL.format(control=azure._control), False
    yield f"{connect} --sign-in device", False
    yield f"%aml_compute create cpu --kind amlcompute --size {SIZE} --max-nodes 2 --yes --wait", False
    yield "%aml_compute use cpu", False
    yield "%aml_compute test cpu", False
    yield JOB.format(name="first", more="--dry-run"), False
    yield JOB.format(name="first", more="--wait"), False
    yield "first", False
    for number, (what, status) in enumerate(REFUSED):
        yield f"echo({what!r}, {status})", False
        yield JOB.format(name=f"refused{number}", more=""), True
        yield STEADY, False
    yield r"echo(r'GET \S+/computes/cpu', 500)", False
    yield "%aml_compute test cpu", True
    yield "%config AMLTrain.short_errors = False", False
    yield "%aml_compute test cpu", True
    yield f"{STEADY}\necho('login.microsoftonline.com', 400); control('/expire-tokens')", False
    yield "%aml_runs list --target cpu", True
    yield f"{STEADY}\n%config AMLTrain.short_errors = True\ncontrol('/expire-signatures');", False
    yield f"{connect} --sign-in device", False
    yield r"echo(r'GET \S+\.blob\.\S+', 403, 8)", False
    yield JOB.format(name="second", more="--wait"), False
    yield f"{STEADY}\nprint(second.logs(), second.record())", False
    yield "%aml_model register kept --run second --path outputs/m.txt", False
    yield "%aml_model download kept --to fetched", False
    yield "control('/switch', datastore_secret='key');", False  # a service that gives away the key of the account
    yield "%aml_model download kept --to again", False
    yield "%aml_runs show second", False
    yield "%aml_compute show cpu", False


REFUSED = (
    (r"PUT management\S+/jobs/", 400),
    (r"PUT management\S+/jobs/", 401),
    (r"PUT management\S+/jobs/", 403),
    (r"(GET|PUT) management\S+/codes/", 500),
    (r"PUT \S+\.blob\.", 403),
)


@pytest.fixture
def approving(azure: Azure) -> Iterator[None]:
    """A person who types every code that is shown."""
    over = threading.Event()

    def type_codes() -> None:
        while not over.wait(0.2):
            azure.control("/approve")

    thread = threading.Thread(target=type_codes, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join(10)


def test_saved_notebook_contains_no_secret(azure: Azure, approving: None, tmp_path: Path) -> None:
    azure.control("/reset")
    import nbformat  # it takes seconds

    notebook = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
    for source, fails in cells(azure):
        cell = nbformat.v4.new_code_cell(source)  # type: ignore[no-untyped-call]
        cell.metadata["tags"] = ["raises-exception"] if fails else []
        notebook.cells.append(cell)
    path, home = tmp_path / "flow.ipynb", tmp_path / "home"
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
    state = home / ".local" / "state" / "amltrain"
    environ = {**SETTINGS, **azure.environ, **QUICK, "AMLTRAIN_HOME": str(state), "AMLTRAIN_AZURE_LOG": "DEBUG"}
    try:
        done = executed(path, home, **environ)
    finally:
        end_all(state)
    nbformat.write(done, path)  # type: ignore[no-untyped-call]
    for cell, (source, fails) in zip(done.cells, cells(azure), strict=True):
        errors = [output for output in cell.outputs if output.output_type == "error"]
        assert bool(errors) == fails, (source, errors)
        for error in errors:
            assert "internal error" not in error.evalue and "\n" not in error.evalue, error.evalue
    nothing_opens(azure, path, home)


def nothing_opens(azure: Azure, notebook: Path, home: Path) -> None:
    """Search everything that stays for everything that the service handed out."""
    texts: dict[str, bytes] = {"the notebook": notebook.read_bytes()}
    texts |= {str(path): path.read_bytes() for path in home.rglob("*") if path.is_file() and not path.is_symlink()}
    assert any(name.endswith("logs/azure.txt") for name in texts)
    assert any(name.endswith("log/rank-0.txt") for name in texts)
    for entry in azure.control("/wire"):
        if not re.search("/listSecrets$|/oauth2/", entry["path"]):
            texts[f"{entry['n']} {entry['method']} {entry['path']}"] = json.dumps(
                [entry["query"], entry["body"]]
            ).encode()
    secrets: list[Any] = azure.control("/secrets")
    assert len(secrets) > 20 and all(len(secret) > 12 for secret in secrets)
    for where, data in texts.items():
        assert (found := SECRETS.search(data)) is None, (where, data[max(0, found.start() - 200) : found.end()])
        for secret in secrets:
            at = data.find(secret.encode())
            assert at < 0, (where, data[max(0, at - 200) : at + len(secret)])
