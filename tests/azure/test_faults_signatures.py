"""Signed addresses whose hour is over: they are asked for again, and nothing is missing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.azure.conftest import Azure
from tests.azure.followed_runs import assert_complete, service_request, start_run
from tests.azure.notebook_session import NotebookSession, cluster_of, until, until_log

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def desk(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NotebookSession]:
    with cluster_of(azure, tmp_path_factory.mktemp("runs")) as made:
        yield made


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "unlisted"])
def test_expired_signatures_in_long_run_are_renewed(desk: NotebookSession, listed: bool) -> None:
    """As in twelve hours: of the logs, and of the agent's files where run history does not list them."""
    desk.azure.control("/switch", logs_in_details=listed)
    try:
        run = start_run(desk, f"signatures-{listed}".lower(), lines=100)
        desk.good("run")  # somebody looks
        for number in range(10, 90, 5):  # often the look at the run has new addresses first
            until_log(run, f"line {number}\n")
            assert desk.azure.control("/expire-signatures")["over"]
        assert_complete(run, 100)
        assert [w for w in desk.azure.control("/wire") if w["status"] == 403 and ".blob." in w["host"]]
    finally:
        desk.azure.control("/switch", logs_in_details=True)


def test_expired_signature_during_download_is_renewed(desk: NotebookSession, tmp_path: Path) -> None:
    """All files are asked for by one signature; here its hour is over when some are fetched."""
    desk.good(
        "%%aml_submit --name leaves --target cpu --as leaves --wait\nimport os\nos.makedirs('outputs', exist_ok=True)\n"
        "for i in range(20):\n    open(f'outputs/{i}.bin', 'wb').write(bytes([i]) * 100_000)"
    )
    job = desk.shell.user_ns["leaves"].run_id
    desk.azure.control("/fault", match=r"GET \S+\.blob\.\S+/outputs/\d+\.bin", times=1, after=9, delay=0.7)
    desk.wire()
    with ThreadPoolExecutor(1) as pool:
        downloaded = pool.submit(lambda: service_request("jobs.outputs", name=job, folder=str(tmp_path)))
        until(lambda: downloaded.done() or [w for w in desk.wire() if w["fault"]])
        desk.azure.control("/expire-signatures")
        assert len(downloaded.result(60)["files"]) == 20
    secrets = [w for w in desk.azure.control("/wire") if w["path"].endswith("/listSecrets")]
    assert len(secrets) >= 2
    for i in range(20):
        assert (tmp_path / f"outputs/{i}.bin").read_bytes() == bytes([i]) * 100_000


def test_submit_with_expired_signatures_succeeds(desk: NotebookSession) -> None:
    """Those by which the last code was sent are kept for a while, to copy what it has: then it is sent again."""
    for number in range(3):
        desk.good(f"%%aml_submit --name again --target cpu --as again --wait\nprint({number}, '{'x' * 5000}')")
        assert desk.shell.user_ns["again"].logs().startswith(f"{number} x")
        desk.azure.control("/expire-signatures")
