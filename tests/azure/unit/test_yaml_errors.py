"""What the SDK says of a bad file, in one line. The messages are those of azure-ai-ml 1.35.2."""

from __future__ import annotations

from typing import Any

import pytest
from azure.core.exceptions import AzureError

from jupyter_amltrain.azure import job_support, yaml_errors

MISSING, UNKNOWN = ["Missing data for required field."], ["Unknown field."]
WRAPPED = """Validation for CommandSchema failed:

 {
  "result": "Failed",
  "errors": [
    {
      "message": "Validation for CommandJob failed:\\n\\n {\\n  \\"foo\\": [\\n    \\"Unknown field.\\"\\n  ]\\n}",
      "path": "*",
      "value": null
    }
  ]
}

 If you are trying to configure an entity that is not of type command, please specify the correct type.
"""


class ValidationError(Exception):
    """As marshmallow's."""

    def __init__(self, messages: Any, field_name: str = "") -> None:
        super().__init__(str(messages))
        self.messages, self.field_name = messages, field_name


def message_of(error: Exception, text: str) -> str:
    return str(yaml_errors.error_of_exception(error, text, "job.yml", "/home"))


def test_yaml_schema_error_is_extracted_from_advice() -> None:
    message = message_of(Exception(WRAPPED), "command: a\nfoo: 1\n")
    assert message.startswith("job.yml line 2, foo: ")


def test_yaml_typo_is_reported_before_missing_key() -> None:
    error = ValidationError({"environment": MISSING, "enviroment": UNKNOWN})
    message = message_of(error, "command: a\nenviroment: b\n")
    assert message.startswith("job.yml line 2, enviroment: ") and "environment?" in message


def test_yaml_union_error_names_intended_alternative() -> None:
    sets = [{"type": [f"Value 'foo' passed is not in set ['{kind}']"]} for kind in ("pytorch", "mpi")]
    text = "command: a\ndistribution:\n  type: foo\n"
    message = message_of(ValidationError({"distribution": sets}), text)
    assert message.startswith("job.yml line 3, distribution.type: 'foo' ") and "pytorch, mpi" in message
    steps: list[Any] = [
        {"component": MISSING},
        {"command": MISSING, "comand": UNKNOWN},
        {"source": MISSING, "output": MISSING, "environment": UNKNOWN, "comand": UNKNOWN},
    ]
    text = "type: pipeline\njobs:\n  a:\n    comand: b\n"
    message = message_of(ValidationError({"jobs": {"a": {"value": steps}}}), text)
    assert message.startswith("job.yml line 4, jobs.a.comand: ")
    wrong = {"resources": {"instance_count": [{"_schema": ["Value passed is not a data binding string: two"]},
                                              {"_schema": ["Not a valid integer."]}]}}  # fmt: skip
    text = "type: pipeline\njobs:\n  a:\n    resources:\n      instance_count: two\n"
    message = message_of(ValidationError({"jobs": {"a": {"value": [{"component": MISSING}, wrong]}}}), text)
    assert message.startswith("job.yml line 5, jobs.a.resources.instance_count: ")


def test_yaml_error_of_field_or_sentence_is_read() -> None:
    error = ValidationError(
        ["Value passed is not a data binding string: x", "Value 'x' passed is not in set ['a', 'b']"], "instance_type"
    )
    text = "type: spark\nresources: {instance_type: x}\n"
    message = message_of(error, text)
    assert message.startswith("job.yml line 2, resources.instance_type: 'x' ") and "a, b" in message
    binding = Exception("Failed to find top level definition for input binding ${{parent.inputs.no}}.")
    text = "type: pipeline\njobs:\n  a:\n    inputs:\n      x: ${{parent.inputs.no}}\n"
    assert message_of(binding, text).startswith("job.yml line 5, jobs.a.inputs.x: ")
    assert message_of(Exception("Unsupported task type: sort"), "type: automl\ntask: sort\n").startswith(
        "job.yml line 2, task"
    )
    assert "\n" not in message_of(Exception("a\n\nb" * 500), "command: a\n")


def test_sdk_validation_error_is_file_error() -> None:
    class MlException(AzureError):
        """As the SDK's own: every exception of azure-core is one of these."""

    class AssetPathException(MlException):
        pass

    text = "\n\x1b[37m\n1) One or more files or folders do not exist.\n\x1b[39m\nDetails: \n\n\x1b[31m(x) No such file"
    error = AssetPathException(
        f"{text} or directory: /a/data\x1b[39m\n\nTo set up VS Code, visit https://example.com\n"
    )
    assert yaml_errors.is_validation(error) and not yaml_errors.is_validation(AzureError("no answer"))
    assert message_of(error, "type: automl\n").endswith(": /a/data")


@pytest.mark.parametrize("kind", ["hdinsight", "databricks", "datalake", "vm"])
@pytest.mark.parametrize("job_type", ["command", "spark", "sweep", "pipeline", "automl", "import"])
def test_attached_compute_without_jobs_refuses_yaml(kind: str, job_type: str) -> None:
    sentence = job_support.unsupported_type_reason(kind, job_type)
    assert sentence and "\n" not in sentence


def test_yaml_job_type_support_follows_kind() -> None:
    for job_type in ("command", "pipeline"):
        assert job_support.unsupported_type_reason("local", job_type) is None
    for job_type in ("spark", "sweep", "automl", "import"):
        sentence = job_support.unsupported_type_reason("local", job_type)
        assert sentence and "cannot run" in sentence
    runs = {kind: {t for t in ("command", "spark", "sweep", "pipeline", "automl")
                   if job_support.unsupported_type_reason(kind, t) is None}
            for kind in ("amlcompute", "serverless", "instance", "kubernetes", "synapse-spark")}  # fmt: skip
    assert runs == {
        "amlcompute": {"command", "sweep", "pipeline", "automl"},
        "serverless": {"command", "spark", "sweep", "pipeline", "automl"},
        "instance": {"command", "sweep", "pipeline", "automl"},
        "kubernetes": {"command", "sweep", "pipeline"},
        "synapse-spark": {"spark", "pipeline"},
    }
