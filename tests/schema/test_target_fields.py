from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
import pytest

from jupyter_amltrain.backends.provisioner import scale_action
from jupyter_amltrain.backends.target_kinds import forms, target_kinds
from jupyter_amltrain.demo import FakeTarget
from jupyter_amltrain.schema.fields import (
    checked_scale,
    checked_target,
    fields_of,
    kind_of_type,
    name_error,
)
from jupyter_amltrain.schema.ssh_target import SshTarget
from jupyter_amltrain.schema.target import ComputeTarget, LocalTarget, form_field


class Sample(ComputeTarget, frozen=True, kw_only=True, tag="sample"):
    """A target for these tests."""

    summary: ClassVar[str] = "A target for these tests."
    title: ClassVar[str] = "Sample"
    verb: ClassVar[str] = "attach"

    host: Annotated[
        str,
        msgspec.Meta(min_length=2, max_length=5, pattern="^[a-z]+$", description="Name of the machine, or its address"),
    ]
    low: Annotated[int, form_field("Both ends", gt=0, lt=10, metavar="N")] = 1
    high: Annotated[float, form_field("Both ends", le=1.5, advanced=True)] | None = None
    shell: bool = True
    mode: Literal["slow", "quick"] = "slow"
    tags: tuple[str, ...] = ()


def test_fields_of_struct_match_annotations() -> None:
    name, host, low, high, shell, mode, tags = fields_of(Sample)
    assert (name.name, name.flag, name.required) == ("name", "", True)
    assert (host.kind, host.required, host.help) == ("text", True, "Name of the machine, or its address")
    assert (low.kind, low.flag, low.default, low.metavar, low.help) == ("int", "--low", 1, "N", "Both ends")
    assert (high.kind, high.default, high.advanced) == ("number", None, True)
    assert (shell.kind, shell.default) == ("bool", True)
    assert (mode.kind, mode.choices, mode.default) == ("choice", ("slow", "quick"), "slow")
    assert (tags.kind, tags.default) == ("list", ())
    kind = kind_of_type(Sample)
    assert (kind.kind, kind.verb, kind.title, kind.help) == ("sample", "attach", "Sample", "A target for these tests.")


@pytest.mark.parametrize("kind", target_kinds())
def test_target_field_has_description(kind: type[ComputeTarget]) -> None:
    fields = [field for field in fields_of(kind) if field.name != "name"]
    assert all(field.help and not field.help.endswith(".") for field in fields)
    assert kind.title and kind.summary.endswith(".")
    given = {field.name: "given" for field in fields if field.required}
    defaults = kind(name="x1", **given)
    for field in fields:
        assert field.required or field.default == msgspec.to_builtins(getattr(defaults, field.name))


def test_target_forms_list_only_creatable_kinds() -> None:
    assert [form.kind for form in forms()][:3] == ["ssh", "amlcompute", "serverless"]
    demo = next(form for form in forms() if form.kind == "fake")
    assert all(field.advanced for field in demo.fields[7:])  # the script of a demonstration


def test_typed_and_form_values_give_equal_target() -> None:
    typed: dict[str, Any] = {"size": "gpu-v100", "max_nodes": "4", "low_priority": "true", "idle_minutes": "2.5"}
    form = {"size": "gpu-v100", "max_nodes": 4, "low_priority": True, "idle_minutes": 2.5, "quota": None, "gpus": ""}
    wanted = FakeTarget(name="big", size="gpu-v100", max_nodes=4, low_priority=True, idle_minutes=2.5)
    assert checked_target(FakeTarget, "big", typed) == (wanted, {})
    assert checked_target(FakeTarget, "big", {**form, "name": "big"}) == (wanted, {})
    found, wrong = checked_target(Sample, "s1", {"host": "abc", "tags": ["x", "y"], "high": "1e-1"})
    assert found == Sample(name="s1", host="abc", tags=("x", "y"), high=0.1) and not wrong


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("size", "gpu-v10", "gpu-v100"),
        ("size", "zzz", "cpu-4, cpu-32, gpu-v100, gpu-8xa100, gpu-8xh100"),
        ("max_nodes", 21, "from 1 to 20"),
        ("max_nodes", "21", "from 1 to 20"),
        ("max_nodes", -1, "from 1 to 20"),
        ("max_nodes", "2.5", "2.5 is not a whole number"),
        ("max_nodes", "many", "'many' is not a whole number"),
        ("max_nodes", True, "True is not a whole number"),
        ("max_nodes", [1], "is not a whole number"),
        ("idle_minutes", 0, "1440"),
        ("queued", "nan", "'nan' is not a number from 0."),
        ("queued", "1e999", "is not a number from 0."),
        ("exit_code", "x", "'x' is not a whole number."),
        ("low_priority", "maybe", "'maybe' is neither true nor false."),
        ("min_nodes", 3, "3 is more than the maximum (1)."),
        ("maxnodes", 3, "max_nodes"),
        ("kind", "local", "Unknown field 'kind'."),
    ],
)
def test_target_field_invalid_error_is_one_sentence(field: str, value: Any, sentence: str) -> None:
    found, wrong = checked_target(FakeTarget, "big", {field: value})
    assert found is None and list(wrong) == [field]
    assert sentence in wrong[field] and "\n" not in wrong[field] and wrong[field].endswith((".", "?"))


def test_text_limits_and_required_fields_are_checked() -> None:
    for host, sentence in {
        "a": "too short: 2 characters at least",
        "abcdef": "too long: 5 characters at most",
        "ABC": "does not match the pattern",
        "": "too short",
    }.items():
        assert sentence in checked_target(Sample, "s1", {"host": host})[1]["host"]
    assert checked_target(Sample, "s1", {})[1] == {"host": "This field is required."}
    assert "is not text" in checked_target(Sample, "s1", {"host": 3})[1]["host"]
    assert "from" not in checked_target(Sample, "s1", {"host": "abc", "high": 2})[1]["high"]
    assert set(checked_target(Sample, "!", {"host": "A", "low": 10, "mode": "?"})[1]) == {"name", "host", "low", "mode"}
    assert "is not a list" in checked_target(Sample, "s1", {"host": "abc", "tags": {"a": 1}})[1]["tags"]


def test_target_name_is_checked() -> None:
    for good in ("a1", "gpu-cluster", "A_b-3", "x" * 32, "42"):
        assert name_error(good) == ""
    for bad in ("x", "x" * 33, "-x", "_x", "a b", "a/b", "ä1", "a\n", None, 3, ""):
        assert name_error(bad).endswith(".") and "\n" not in name_error(bad)
    assert "this machine" in name_error("local")
    assert LocalTarget.verb == ""


NOW = scale_action(1, 4, 15.0).fields


@pytest.mark.parametrize(
    ("values", "good"),
    [
        ({"min_nodes": "3"}, {"min_nodes": 3}),
        ({"nodes": 0}, {"min_nodes": 0}),
        ({"max_nodes": 6, "min_nodes": 6}, {"max_nodes": 6, "min_nodes": 6}),
        ({"idle_minutes": "2.5", "min_nodes": ""}, {"idle_minutes": 2.5}),
        ({"max_nodes": 1}, {"max_nodes": 1}),
    ],
)
def test_scale_valid_values_are_accepted(values: dict[str, Any], good: dict[str, Any]) -> None:
    assert checked_scale(FakeTarget(name="big"), NOW, values) == (good, {})


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"min_nodes": 5}, "min_nodes"),
        ({"nodes": 5}, "nodes"),
        ({"nodes": 3, "max_nodes": 2}, "nodes"),
        ({"max_nodes": 0}, "max_nodes"),
        ({"max_nodes": "many"}, "max_nodes"),
        ({"idle_minutes": 0}, "idle_minutes"),
        ({"min_nodes": None}, ""),
        ({}, ""),
    ],
)
def test_scale_invalid_error_names_field(values: dict[str, Any], field: str) -> None:
    assert list(checked_scale(FakeTarget(name="big"), NOW, values)[1]) == [field]


def test_scale_maximum_below_current_minimum_is_refused() -> None:
    _, wrong = checked_scale(FakeTarget(name="big"), scale_action(2, 4, 15.0).fields, {"max_nodes": 1})
    assert "--min-nodes" in wrong["max_nodes"]


def test_several_machines_over_ssh_are_one_field() -> None:
    target, errors = checked_target(SshTarget, "gpus", {"host": "a, ann@10.0.0.4:2222, [fe80::1]:22", "user": "bob"})
    assert not errors and isinstance(target, SshTarget) and target.variant == "nodes"
    nodes = [target.node_target(number) for number in range(3)]
    assert {node.whole_name for node in nodes} == {target.name}
    assert [(node.host, node.user, node.port) for node in nodes] == [
        ("a", "bob", 0), ("10.0.0.4", "ann", 2222), ("fe80::1", "bob", 22),
    ]  # fmt: skip
    assert [node.variant for node in nodes] == ["", "", ""] and len({node.name for node in nodes}) == 3


@pytest.mark.parametrize("host", ["a,a", "a,b c", "a,-b", "a,b:port"])
def test_wrong_list_of_machines_is_refused(host: str) -> None:
    assert "host" in checked_target(SshTarget, "gpus", {"host": host})[1]
