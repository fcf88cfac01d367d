from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema.job import MAX_NAME, JobSpec, Resources, validated


def test_job_spec_json_round_trip_is_equal() -> None:
    spec = JobSpec(
        name="digits",
        script="pass\n",
        params={"lr": 0.1, "layers": [64, 32], "opt": {"name": "adam", "nesterov": None}},
        args=("--fast",),
        out=("accuracy",),
        env={"A": "é"},
        secrets=("TOKEN",),
        resources=Resources(gpus=2),
        tags={"team": "a"},
        timeout=1.5,
        require_gpu="stop",
        gpu_grace=30.0,
    )
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec


def test_job_spec_with_unknown_field_ignores_field() -> None:
    data = {**msgspec.to_builtins(JobSpec(name="x")), "nodes": 4}
    assert msgspec.convert(data, JobSpec) == JobSpec(name="x")


@pytest.mark.parametrize("name", ["x", "a name with blanks", "Ünï-çødé 数字", "n" * MAX_NAME])
def test_job_name_valid_is_accepted(name: str) -> None:
    spec = JobSpec(name=name)
    assert validated(spec) is spec


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "--name ''"),
        ({"name": "n" * 65}, "has 65"),
        ({"name": "a/b"}, "no '/'"),
        ({"name": "a\nb"}, "--name"),
        ({"experiment": ""}, "--experiment"),
        ({"experiment": "e" * 251}, "--experiment"),
        ({"resources": Resources(gpus=-1)}, "--gpus -1"),
        ({"resources": Resources(gpus=1.5)}, "--gpus 1.5"),
        ({"resources": Resources(gpus=0.001)}, "--gpus 0.001"),
        ({"resources": Resources(gpus=float("nan"))}, "--gpus nan"),
        ({"resources": Resources(gpus=0.5, nodes=2)}, "one process"),
        ({"require_gpu": "maybe"}, "--require-gpu stop|warn"),
        ({"gpu_ids": "name"}, "--gpu-ids uuid|index"),
        ({"require_gpu": "stop", "resources": Resources(gpus=0)}, "no GPU to use"),
        ({"gpu_grace": 0.0}, "gpu_grace 0"),
        ({"gpu_grace": float("nan")}, "gpu_grace nan"),
        ({"timeout": 0.0}, "--timeout 0"),
        ({"timeout": -3.0}, "--timeout -3"),
        ({"timeout": float("nan")}, "--timeout nan"),
        ({"timeout": float("inf")}, "--timeout inf"),
        ({"env": {"A-B": "1"}}, "--env-var 'A-B'"),
        ({"env": {"": "1"}}, "--env-var ''"),
        ({"secrets": ("1X",)}, "--secret '1X'"),
        ({"secrets": ("X\n",)}, "--secret"),
        ({"out": ("a.b",)}, "--out 'a.b'"),
        ({"out": ("",)}, "--out ''"),
        ({"env": {"A": "1"}, "secrets": ("A",)}, "A is given by both"),
        ({"tags": {"k" * 251: "v"}}, "--tag"),
        ({"tags": {"k": "v" * 5001}}, "--tag"),
    ],
)
def test_job_spec_invalid_error_names_field_and_hint(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        validated(JobSpec(**{"name": "x", **fields}))
    assert message in str(caught.value) and "\n" not in str(caught.value) and caught.value.hint
