"""The graph of a pipeline is checked before anything runs."""

from __future__ import annotations

import pytest

from jupyter_amltrain.errors import CommandError, SpecError
from jupyter_amltrain.pipelines import plan, steps
from jupyter_amltrain.pipelines.functions import request_of, step
from jupyter_amltrain.pipelines.plan import DATA, FROM, NEVER, ONLY, Link, PipelinePlan, PlannedStep
from jupyter_amltrain.pipelines.steps import linked, need, with_params

from .shapes import diamond


def planned(**needs: str) -> list[PlannedStep]:
    """Steps by name, with the names of those that each needs."""
    return [PlannedStep(name=name, target="local", after=tuple(text.split())) for name, text in needs.items()]


def test_steps_follow_those_that_they_need() -> None:
    found = [one.name for one in plan.ordered(planned(d="b c", b="a", c="a", a=""))]
    assert found[0] == "a" and found[-1] == "d" and set(found) == {"a", "b", "c", "d"}


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (planned(a="b", b="a"), "pipeline.cycle"),
        (planned(a="a"), "pipeline.cycle"),
        (planned(a="gone"), "pipeline.unknown_step"),
        (planned(**{f"s{i}": "" for i in range(plan.MAX_STEPS + 1)}), "pipeline.size"),
    ],
)
def test_unsound_graph_is_refused_in_one_line(found: list[PlannedStep], code: str) -> None:
    with pytest.raises(SpecError) as caught:
        plan.ordered(found)
    assert caught.value.code == code and "\n" not in str(caught.value)


def test_one_step_that_is_named_runs_itself_or_all_that_depend_on_it() -> None:
    every = plan.ordered(planned(a="", b="a", c="a", d="b"))
    assert PipelinePlan(steps=every).must_run() == set()
    assert PipelinePlan(steps=every, reuse=NEVER).must_run() == {"a", "b", "c", "d"}
    assert PipelinePlan(steps=every, reuse=FROM, named="b").must_run() == {"b", "d"}
    only = PipelinePlan(steps=every, reuse=ONLY, named="b")
    assert only.must_run() == {"b"} and only.may_not_run() == {"a", "c", "d"}
    assert plan.ancestors(every, "d") == ["a", "b", "d"]


def test_links_are_found_by_name_or_named() -> None:
    found = {one.name: one for one in linked(diamond(), "local")}
    assert found["left"].links == {"data": Link(step="prep", output="data")}
    assert found["join"].needs == ("left", "right") or found["join"].needs == ("right", "left")
    named = step("x", "y = table", needs=["table=prep.data"])
    assert linked([*diamond(), named], "local")[-1].links["table"] == Link(step="prep", output="data")


def test_folder_is_data() -> None:
    made = step("make", "pass", outputs=["parts"])
    (_, taker) = linked([made, step("use", "print(parts)", needs=["parts"])], "local")
    assert taker.links["parts"].kind == DATA


@pytest.mark.parametrize(
    ("needs", "more", "word"),
    [
        (["gone"], [], "none of the steps"),
        (["prep.gone"], [], "prep makes data"),
        (["other.data"], [], "other"),
        (["data"], [step("again", "data = 1", out=["data"])], "prep, again"),
        (["data", "data=prep.data"], [], "twice"),
    ],
)
def test_input_that_nothing_or_too_much_makes_is_refused(needs: list[str], more: list[object], word: str) -> None:
    with pytest.raises(SpecError, match=word) as caught:
        linked([*diamond(), *more, step("x", "print(data)", needs=needs)], "local")  # type: ignore[list-item]
    assert "\n" not in str(caught.value)


def test_value_cannot_travel_to_a_file(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    with open("train.py", "w", encoding="utf-8") as file:
        file.write("print(1)\n")
    with pytest.raises(SpecError, match="variable"):
        linked([*diamond(), step("train", "train.py", needs=["data"])], "local")


def test_parameter_is_set_in_each_step_that_has_it_or_in_one() -> None:
    two = [step("a", "print(lr)", params={"lr": 1}), step("b", "print(lr)", params={"lr": 1})]
    assert [one.spec.params["lr"] for one in with_params(two, {"lr": 2})] == [2, 2]
    assert [one.spec.params["lr"] for one in with_params(two, {"b.lr": 3})] == [1, 3]
    assert "lr = 3" in with_params(two, {"b.lr": 3})[1].spec.script
    with pytest.raises(SpecError) as caught:
        with_params(two, {"rate": 1})
    assert caught.value.code == "pipeline.param" and "a.lr" in str(caught.value)


@pytest.mark.parametrize("text", ["", "a b", "prep.", "1x", "a=b=c", "../x"])
def test_text_that_names_no_output_is_refused(text: str) -> None:
    with pytest.raises(CommandError):
        need(text)


def test_ways_to_run_exclude_each_other() -> None:
    with pytest.raises(CommandError, match="--only"):
        request_of(diamond(), reuse=False, only="prep", first="", name="", experiment="")
    with pytest.raises(CommandError, match="prep"):
        request_of([*diamond(), *diamond()], reuse=True, only="", first="", name="", experiment="")


def test_steps_of_notebook_are_replaced_and_forgotten() -> None:
    steps.forget()
    with pytest.raises(CommandError, match="no steps"):
        steps.chosen([])
    for one in [*diamond(), step("prep", "data = [9]", out=["data"])]:
        steps.define(one)
    assert [one.name for one in steps.chosen([])] == ["left", "right", "join", "prep"]
    assert "[9]" in steps.defined()["prep"].spec.cell
    with pytest.raises(SpecError, match="prep"):
        steps.chosen(["prepp"])
    steps.forget(["prep"])
    assert "prep" not in steps.defined()
    steps.forget()
