"""A flag that a target would ignore is refused, whatever the target: nothing is dropped silently."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from jupyter_amltrain.azure.targets import AmlComputeTarget
from jupyter_amltrain.backends.honored import check_honored, kinds_without
from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.jobs.flags import FLAGS
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.job import JobSpec, Resources
from jupyter_amltrain.schema.ssh_target import SshTarget
from jupyter_amltrain.schema.target import ComputeTarget, LocalTarget


class Plain(ComputeTarget, frozen=True, kw_only=True, tag="plain"):
    """A target of a plug-in that declares little."""

    honors: ClassVar[frozenset[str] | None] = frozenset({"timeout", "resources.gpus"})


PLAIN = Plain(name="lab")
SSH = SshTarget(name="box", host="h")
AZURE = AmlComputeTarget(name="cpu", size="Standard_DS3_v2")


def refused(target: ComputeTarget, **fields: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        check_honored(JobSpec(name="x", **fields), target)
    assert caught.value.code == "spec.unsupported" and "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("target", "fields", "field"),
    [
        (PLAIN, {"max_restarts": 2}, "max_restarts"),
        (PLAIN, {"secrets": ("TOKEN",)}, "secrets"),
        (PLAIN, {"environment": Environment(pip=("pandas",))}, "environment.pip"),
        (PLAIN, {"environment": Environment(image="i/j")}, "environment"),
        (SSH, {"priority": "high"}, "priority"),
        (LocalTarget(name="local"), {"resources": Resources(nodes=2)}, "resources.nodes"),
        (AZURE, {"secrets": ("TOKEN",)}, "secrets"),
        (AZURE, {"gpu_ids": "uuid"}, "gpu_ids"),
        (AZURE, {"python": "/usr/bin/python3"}, "python"),
        (AZURE, {"share_gpus": True}, "share_gpus"),
        (AZURE, {"metric_lines": ("loss={value}",)}, "metric_lines"),
        (AZURE, {"stop_on_nan": "loss"}, "stop_on_nan"),
    ],
)
def test_field_that_a_target_ignores_is_refused(target: ComputeTarget, fields: dict[str, Any], field: str) -> None:
    error = refused(target, **fields)
    flag = next(flag.flag for flag in FLAGS if flag.field == field)
    assert error.field == field and error.subject.startswith(flag) and repr(target.name) in str(error)


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        (PLAIN, {"timeout": 60.0, "params": {"lr": 1}, "tags": {"a": "b"}, "experiment": "e"}),
        (PLAIN, {"environment": Environment(conda="/c.yml", chosen="%config")}),
        (SSH, {"resources": Resources(nodes=2), "secrets": ("TOKEN",), "max_restarts": 1}),
        (LocalTarget(name="local"), {"resources": Resources(shm_size="2g"), "environment": Environment(image="i/j")}),
        (AZURE, {"priority": "high", "identity": "user", "resources": Resources(nodes=2)}),
    ],
)
def test_field_that_a_target_honors_is_accepted(target: ComputeTarget, fields: dict[str, Any]) -> None:
    check_honored(JobSpec(name="x", **fields), target)


def test_service_with_a_key_is_named_without_it() -> None:
    assert "AAAA" not in str(refused(LocalTarget(name="local"), services=("ssh:ssh-rsa AAAA",)))


def test_form_hides_what_a_kind_ignores() -> None:
    kinds = (LocalTarget, SshTarget, Plain, AmlComputeTarget)
    assert kinds_without("nodes", kinds) == ("local", "plain")
    assert kinds_without("python", kinds) == ("plain", "amlcompute")
    assert kinds_without("timeout", kinds) == () and kinds_without("param", kinds) == ()
