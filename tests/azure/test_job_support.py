from __future__ import annotations

import pytest

from jupyter_amltrain.azure.job_support import WHAT, row, table, unsupported_reason, unsupported_type_reason
from jupyter_amltrain.azure.targets import AZURE_KINDS


def test_support_table_has_every_kind_and_column() -> None:
    assert table()["source"] and table()["date"]
    columns = {"gpu", "tuning", "automl", "pipelines", *(column for column, _ in WHAT.values())}
    for kind in AZURE_KINDS:
        found = row(str(kind.__struct_config__.tag))
        assert columns <= found.keys() and all(found[c] in ("yes", "no", "maybe", "pipeline") for c in columns)


@pytest.mark.parametrize("what", WHAT)
def test_cluster_supports_all_but_spark(what: str) -> None:
    assert (unsupported_reason("amlcompute", what) is None) == (what != "spark")


@pytest.mark.parametrize(
    ("kind", "what", "sentence"),
    [
        ("vm", "command", "--kind ssh"),
        ("databricks", "pipeline", "Databricks"),
        ("datalake", "command", "Use a cluster"),
        ("hdinsight", "spark", "attach a Synapse Spark pool"),
        ("synapse-spark", "command", "Synapse Spark pool"),
        ("instance", "nodes", "compute instance"),
        ("kubernetes", "automl", "AutoML"),
        ("amlcompute", "spark", "--kind synapse-spark"),
    ],
)
def test_unsupported_job_type_error_names_alternatives(kind: str, what: str, sentence: str) -> None:
    reason = unsupported_reason(kind, what)
    assert reason is not None and sentence in reason and "\n" not in reason and "  " not in reason


def test_supported_job_type_is_accepted() -> None:
    assert unsupported_reason("synapse-spark", "spark") is None
    assert unsupported_reason("serverless", "sweep") is None and unsupported_reason("serverless", "nodes") is None
    assert unsupported_reason("instance", "gpu") is None and unsupported_reason("kubernetes", "gpu") is None
    assert unsupported_reason("folder", "command") is None  # nothing is known of others


def test_support_table_of_local_matches_refusals() -> None:
    """Of files of az ml: the column says no where a submit is refused."""
    columns = {
        "command": "command",
        "sweep": "sweep",
        "automl": "automl_now",
        "pipeline": "pipeline_now",
        "spark": "spark",
    }
    for job_type, column in columns.items():
        assert (unsupported_type_reason("local", job_type) is None) == (row("local")[column] == "yes"), job_type
