"""Every setting of a job by its three names: ours, ARM's and the SDK's."""

from __future__ import annotations

import pytest

from jupyter_amltrain.azure import terms as azure_terms
from jupyter_amltrain.azure.service import sdk
from jupyter_amltrain.schema.az_yaml_job import FILE_DISTRIBUTIONS, IDENTITY_NAMES, SERVICE_NAMES

OBJECTS = [
    (terms, row)
    for terms in (azure_terms.IDENTITIES, azure_terms.DISTRIBUTIONS, azure_terms.SERVICES)
    for row in terms.rows
]


@pytest.mark.thorough
@pytest.mark.parametrize(("terms", "row"), OBJECTS, ids=[row.name for _, row in OBJECTS])
def test_term_with_class_of_sdk_is_made_and_has_the_same_name_in_yaml_and_arm(terms, row):
    keywords = {"log_dir": "x"} if row.name == "tensorboard" else {"ssh_public_keys": "k"} if row.name == "ssh" else {}
    made = sdk._sdk_object(terms, row.arm, **keywords)
    assert type(made).__name__ == row.sdk
    in_files = {**{name: name for name in FILE_DISTRIBUTIONS}, **IDENTITY_NAMES, **SERVICE_NAMES}
    assert in_files[str(made.type).lower()] == row.name
    assert terms.arm(row.name) == row.arm and terms.of_arm(row.arm) is row


def test_term_that_is_unknown_is_empty():
    assert azure_terms.TIERS.arm("") == "" and azure_terms.MODES.of_arm("?") is None
    assert azure_terms.PRIORITIES.arm("high") == "3" and azure_terms.TIERS.arm("spot") == "Spot"
