from __future__ import annotations

from pathlib import Path

from ..contracts.notebook_values import check_round_trip
from .conftest import Azure
from .connected_api import lab, submit


def test_every_value_comes_back(azure: Azure, tmp_path: Path) -> None:
    with lab(azure, tmp_path):
        check_round_trip("cpu", 240)


def test_files_of_a_job_are_listed_and_read(azure: Azure, tmp_path: Path) -> None:
    with lab(azure, tmp_path):
        cell = "import os\nos.makedirs('outputs/deep', exist_ok=True)\n"
        cell += "open('outputs/deep/a.txt', 'w').write('a' * 300_000)\n"
        cell += "open(os.environ['AML_OUTPUT_DIR'] + '/b.bin', 'wb').write(b'b')"
        run = submit("--target cpu", cell).wait(240)
        files = {file.path: file for file in run.files()}
        assert files["outputs/deep/a.txt"].read() == b"a" * 300_000 and files["outputs/b.bin"].read() == b"b"
        saved = files["outputs/deep/a.txt"].save(tmp_path)
        assert saved.stat().st_size == 300_000
