from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.conftest import end_all
from tests.ui.lab import MS, LabServer
from tools import chromium, frontend

expect.set_options(timeout=MS)  # a busy machine needs longer than 5 s

#: As root Chromium has no sandbox; the rest keeps it from calling home.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.ui)
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="package")  # closed with the last test of ui/: `asyncio.run` fails beside its loop
def browser() -> Iterator[Browser]:
    path = chromium.find()
    if path is None:
        pytest.skip("no Chromium on this machine")
    if "AMLTRAIN_UI_BUNDLE" not in os.environ and not (frontend.BUNDLE / "package.json").exists():
        pytest.skip("the labextension is not built: make test builds it")
    with sync_playwright() as driver:
        chosen = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        yield chosen
        chosen.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    folder = tmp_path_factory.mktemp("lab")
    server = LabServer(folder)
    yield server
    server.close()
    # Runs outlive the server, as they should.
    end_all(folder / "state")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """The one page that the tests of a file share: loading JupyterLab is what takes long."""
    found = browser.new_page(viewport={"width": 1200, "height": 950})
    found.set_default_timeout(MS)
    yield found
    found.close()


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """Folder for screenshots; ``AMLTRAIN_SHOTS`` keeps them where a person looks at them."""
    place = Path(os.environ.get("AMLTRAIN_SHOTS", tmp_path))
    place.mkdir(parents=True, exist_ok=True)
    return place
