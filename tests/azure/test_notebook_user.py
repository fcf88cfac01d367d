"""What a person meets at a notebook over the emulated Azure: computes that are off or gone, and wrong input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.azure.conftest import Azure
from tests.azure.lab import SIZE, carry_out, lab, submit
from tests.places import DEADLINE, until


@pytest.fixture(scope="module")
def api(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab(azure, tmp_path_factory.mktemp("user")) as module:
        yield module


def test_job_for_a_stopped_instance_names_the_line_that_starts_it(api: Any) -> None:
    carry_out(f"create mine --kind instance --size {SIZE}")
    carry_out("stop mine")
    run = submit("--target mine", "print('on at last')").accepted(DEADLINE)
    until(lambda: "%aml_compute start mine" in run.run.status.detail, "the reason")
    assert run.state == "queued"
    carry_out("start mine")
    assert run.wait(DEADLINE).state == "completed"
