"""The ten expressions: line, Azure's forms, distributions, grids, conditional parameters, errors.

Meanings are those of https://learn.microsoft.com/azure/machine-learning/how-to-tune-hyperparameters (TUNE) and of
https://learn.microsoft.com/azure/machine-learning/reference-yaml-job-sweep#parameter-expressions (YAML).
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema.expression_file import (
    expression_from_file,
    expression_to_file,
    space_from_lists,
    space_to_lists,
)
from jupyter_amltrain.schema.search_space import (
    EXPRESSIONS,
    Choice,
    Expression,
    LogNormal,
    LogUniform,
    Normal,
    QLogNormal,
    QLogUniform,
    QNormal,
    QUniform,
    RandInt,
    Uniform,
    active_parameters,
    as_choice,
    check_expression,
    check_grid,
    check_space,
    dimensions,
    expression_text,
    grid_point,
    grid_size,
    is_expression,
    is_finite,
    parameter_names,
    parse_expression,
    positions,
    quantile,
    quantile_point,
)

# Text, expression, form of az ml, form of REST (SDK's ``_to_rest_object``).
FORMS: list[tuple[str, Expression, dict[str, Any], list[Any]]] = [
    ("choice(1,2,3)", Choice((1, 2, 3)), {"type": "choice", "values": [1, 2, 3]}, ["choice", [[1, 2, 3]]]),
    ("randint(10)", RandInt(10), {"type": "randint", "upper": 10}, ["randint", [10]]),
    ("uniform(0,1)", Uniform(0, 1), {"type": "uniform", "min_value": 0, "max_value": 1}, ["uniform", [0, 1]]),
    (
        "quniform(0,1,0.1)",
        QUniform(0, 1, 0.1),
        {"type": "quniform", "min_value": 0, "max_value": 1, "q": 0.1},
        ["quniform", [0, 1, 0.1]],
    ),
    # YAML: "The minimum value in the range is exp(min_value)".
    (
        "loguniform(0.0001,0.1)",
        LogUniform(1e-4, 0.1),
        {"type": "loguniform", "min_value": math.log(1e-4), "max_value": math.log(0.1)},
        ["loguniform", [math.log(1e-4), math.log(0.1)]],
    ),
    # TUNE: "QLogUniform ... round(exp(Uniform(min_value, max_value)) / q) * q".
    (
        "qloguniform(8,1024,8)",
        QLogUniform(8, 1024, 8),
        {"type": "qloguniform", "min_value": math.log(8), "max_value": math.log(1024), "q": 8},
        ["qloguniform", [math.log(8), math.log(1024), 8]],
    ),
    ("normal(10,3)", Normal(10, 3), {"type": "normal", "mu": 10, "sigma": 3}, ["normal", [10, 3]]),
    ("qnormal(10,3,2)", QNormal(10, 3, 2), {"type": "qnormal", "mu": 10, "sigma": 3, "q": 2}, ["qnormal", [10, 3, 2]]),
    ("lognormal(-7,1)", LogNormal(-7, 1), {"type": "lognormal", "mu": -7, "sigma": 1}, ["lognormal", [-7, 1]]),
    (
        "qlognormal(4,0.5,1)",
        QLogNormal(4, 0.5, 1),
        {"type": "qlognormal", "mu": 4, "sigma": 0.5, "q": 1},
        ["qlognormal", [4, 0.5, 1]],
    ),
    (
        "choice({model:sgd,lr:loguniform(0.1,1)},{model:adam})",
        Choice(({"model": "sgd", "lr": LogUniform(0.1, 1)}, {"model": "adam"})),
        {
            "type": "choice",
            "values": [
                {"model": "sgd", "lr": {"type": "loguniform", "min_value": math.log(0.1), "max_value": 0.0}},
                {"model": "adam"},
            ],
        },
        ["choice", [[{"model": "sgd", "lr": ["loguniform", [math.log(0.1), 0.0]]}, {"model": "adam"}]]],
    ),
]


@pytest.mark.parametrize(("text", "e", "azure", "rest"), FORMS, ids=[form[0] for form in FORMS])
def test_line_yaml_and_rest_have_the_same_meaning(
    text: str, e: Expression, azure: dict[str, Any], rest: list[Any]
) -> None:
    assert parse_expression("p", text) == e and expression_text(e) == text
    assert expression_to_file(e) == azure and expression_from_file(azure) == e
    assert space_to_lists({"p": e}) == {"p": rest} and space_from_lists({"p": rest}) == {"p": e}
    assert msgspec.json.decode(msgspec.json.encode(e), type=Expression) == e


@pytest.mark.thorough
def test_rest_form_equals_that_of_the_sdk() -> None:
    from azure.ai.ml.entities._job.sweep import search_space as sdk

    for _, e, azure, rest in FORMS[:-1]:
        kind = azure["type"]
        name = {"randint": "Randint"}.get(kind, type(e).__name__)
        own = getattr(sdk, name)(**{key: value for key, value in azure.items() if key != "type"})
        assert own._to_rest_object() == rest


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("choice(sgd,adam)", ("sgd", "adam")),
        ('choice("a b",true,null)', ("a b", True, None)),
        ("choice( 1 , 1.5,-2,1e-3 , .5 )", (1, 1.5, -2, 1e-3, 0.5)),
        ("choice('it\\'s',\"a,b\",'say \"hi\"')", ("it's", "a,b", 'say "hi"')),
        ("choice([1,2],[64,x])", ([1, 2], [64, "x"])),
        ("choice(azureml:data:1,s3://b/k)", ("azureml:data:1", "s3://b/k")),
        ('choice("1","true",007)', ("1", "true", "007")),
        ("choice(none,{})", ("none", {})),
        ('choice({"a": "x:y"})', ({"a": "x:y"},)),
        ("Choice(True, False, None)", (True, False, None)),
    ],
)
def test_choice_reads_numbers_words_and_quoted_text(text: str, values: tuple[Any, ...]) -> None:
    e = parse_expression("p", text)
    assert isinstance(e, Choice) and e.values == values
    assert [type(value) for value in e.values] == [type(value) for value in values]
    assert parse_expression("p", expression_text(e)) == e


def test_nested_choice_is_read() -> None:
    e = parse_expression("opt", "choice({m: sgd, s: choice({k: step, n: randint(3)}, {k: cosine})}, {m: adam})")
    assert parse_expression("opt", expression_text(e)) == e
    assert parameter_names({"opt": e}) == ["m", "k", "n"]


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
)


@pytest.mark.thorough
@given(st.lists(SCALARS | st.lists(SCALARS, max_size=3), min_size=1, max_size=5))
def test_text_of_any_choice_is_read_back(values: list[Any]) -> None:
    e = Choice(tuple(values))
    text = expression_text(e)
    try:
        assert parse_expression("p", text) == e
    except SpecError as error:
        assert error.code == "space.duplicate"


@pytest.mark.thorough
@given(st.floats(1e-300, 1e300), st.floats(1.001, 1000))
def test_logarithmic_bounds_survive_azures_exponents(low: float, ratio: float) -> None:
    e = LogUniform(low, low * ratio)
    back = expression_from_file(expression_to_file(e))
    assert isinstance(back, LogUniform)
    assert back.low == pytest.approx(low, rel=1e-12) and back.high == pytest.approx(low * ratio, rel=1e-12)


def test_exponents_of_other_base_are_those_of_logbase() -> None:
    value = {"type": "loguniform", "min_value": -4, "max_value": -1}
    e = expression_from_file(value, "lr", base=10)
    assert isinstance(e, LogUniform) and (e.low, e.high) == pytest.approx((1e-4, 0.1))


def test_numbers_of_yaml_may_be_text() -> None:
    # YAML 1.1 reads 1e-4 as text.
    assert expression_from_file({"type": "Uniform", "min_value": "1e-4", "max_value": 1}) == Uniform(1e-4, 1)


# -- errors ----------------------------------------------------------------------------------------------------------

ERRORS = [
    ("unifrm(0,1)", "unknown", "uniform"),
    ("foo(0,1)", "unknown", "loguniform"),
    ("uniform(1)", "arguments", "low, high"),
    ("uniform(1,2,3)", "arguments", "2"),
    ("choice()", "empty", "no values"),
    ("uniform(1,0)", "range", "uniform(0,1)"),
    ("uniform(1,1)", "range", "less"),
    ("loguniform(1,0.1)", "range", "loguniform(0.1,1)"),
    ("loguniform(-6,-1)", "exponent", "--param p=loguniform(0.00248,0.368)"),
    ("qloguniform(0,5,2)", "exponent", "qloguniform(1,148,2)"),
    ("loguniform(-1,1e9)", "exponent", "loguniform(1e-4,1e-1)"),
    ("quniform(0,1,0)", "q", "greater"),
    ("qnormal(0,1,-1)", "q", "greater"),
    ("quniform(0,1,2)", "q", "larger"),
    ("quniform(0,1,1e-20)", "q", "small"),
    ("normal(0,0)", "sigma", "sigma"),
    ("qlognormal(0,-1,1)", "sigma", "sigma"),
    ("lognormal(1000,1)", "range", "logarithm"),
    ("randint(0)", "upper", "whole"),
    ("randint(1.5)", "upper", "whole"),
    ("uniform(a,1)", "number", "'a'"),
    ("uniform(nan,1)", "number", "nan"),
    ("uniform(0,inf)", "number", "inf"),
    ("uniform(0,1e999)", "number", "inf"),
    ("choice(nan)", "number", "nan"),
    ("choice(1e999)", "number", "finite"),
    ("choice(99999999999999999999)", "number", "64"),
    ("choice(1,1)", "duplicate", "twice"),
    ("choice({a: 1, a: 2})", "duplicate", "twice"),
    ("choice({a: 1, g: choice({a: 2})})", "duplicate", "a"),
    ("choice(uniform(0,1))", "option", "{p: uniform(0,1)}"),
    ("choice({for: 1})", "name", "keyword"),
    ("choice({lr: uniform(1,0)})", "range", "lr"),
    ("uniform(0,1", "syntax", "Close"),
    ("uniform(0,1))", "syntax", "end"),
    ("uniform", "syntax", "("),
    ("choice(a b)", "syntax", "Quote"),
    ('choice("a)', "syntax", "quotation"),
    ("choice({a 1})", "syntax", ":"),
    ("choice({: 1})", "syntax", "name"),
    ("choice(1,)", "syntax", "value"),
]


@pytest.mark.parametrize(("text", "code", "word"), ERRORS)
def test_invalid_expression_names_parameter_and_reason(text: str, code: str, word: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_expression("p", text)
    assert caught.value.code == f"space.{code}" and word in str(caught.value)
    assert caught.value.field.startswith("space.") and "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "word"), [("for", "keyword"), ("a b", "a_b"), ("1a", "v1a"), ("__x", "reserved")])
def test_name_that_is_no_variable_is_refused(name: str, word: str) -> None:
    with pytest.raises(SpecError, match=word) as caught:
        parse_expression(name, "uniform(0,1)")
    assert caught.value.code == "space.name"


@given(st.text(max_size=30) | st.from_regex(r"(choice|uniform)\([^)]{0,20}\)?", fullmatch=True))
def test_any_text_is_an_expression_or_an_error_of_one_line(text: str) -> None:
    try:
        e = parse_expression("p", text)
    except SpecError as error:
        assert error.code.startswith("space.")
    else:
        assert parse_expression("p", expression_text(e)) == e


AZURE_ERRORS: list[tuple[Any, str]] = [
    ({"type": "unifrm", "min_value": 0, "max_value": 1}, "unknown"),
    ({"min_value": 0}, "unknown"),
    ("uniform", "syntax"),
    ({"type": "uniform", "min_value": 0}, "arguments"),
    ({"type": "choice"}, "arguments"),
    ({"type": "choice", "values": []}, "empty"),
    ({"type": "uniform", "min_value": 1, "max_value": 0}, "range"),
    ({"type": "uniform", "min_value": "x", "max_value": 0}, "number"),
    ({"type": "loguniform", "min_value": 0, "max_value": 1000}, "exponent"),
    ({"type": "randint", "upper": True}, "number"),
]


@pytest.mark.parametrize(("value", "code"), AZURE_ERRORS)
def test_invalid_yaml_names_its_key(value: Any, code: str) -> None:
    with pytest.raises(SpecError) as caught:
        expression_from_file(value, "lr")
    assert caught.value.code == f"space.{code}" and "search_space.lr" in str(caught.value)


@pytest.mark.parametrize("value", [3, ["uniform"], ["uniform", [0]], ["nothing", [1]], ["choice", [[]]]])
def test_invalid_rest_is_refused(value: Any) -> None:
    with pytest.raises(SpecError, match="search_space.lr"):
        space_from_lists({"lr": value})


def test_name_of_two_expressions_is_refused() -> None:
    group = parse_expression("opt", "choice({lr: 1})")
    with pytest.raises(SpecError) as caught:
        check_space({"lr": Uniform(0, 1), "opt": group})
    assert caught.value.code == "space.duplicate"
    check_space({"lr": group})  # a group may have the name of its parameter
    with pytest.raises(SpecError):
        check_space({})


def test_is_expression_distinguishes_values_from_expressions() -> None:
    assert is_expression("uniform(0,1)") and is_expression(" unifrm(0, 1) ") and is_expression("Choice(a)")
    assert is_expression("choice(1") and is_expression("uniform(0,1))")  # which it is not: an error names it
    for text in ("0.1", "sgd", "print(1)", "uniform", "unifrm(1", "[1,2]", "max(1,2)"):
        assert not is_expression(text)


# -- distributions ---------------------------------------------------------------------------------------------------


def draws(text: str, count: int = 10_000) -> list[Any]:
    rng, e = random.Random(5), parse_expression("p", text)
    return [quantile(e, rng.random()) for _ in range(count)]


def test_choice_and_randint_draw_all_values_equally() -> None:
    for text, values in (("choice(a,b,c,d)", list("abcd")), ("randint(4)", [0, 1, 2, 3])):
        counts = Counter(draws(text))
        assert sorted(counts) == values and all(2350 < count < 2650 for count in counts.values())


def test_uniform_is_within_bounds_with_its_moments() -> None:
    values = draws("uniform(-1,3)")
    assert min(values) >= -1 and max(values) <= 3
    assert statistics.mean(values) == pytest.approx(1, abs=0.04)
    assert statistics.stdev(values) == pytest.approx(4 / math.sqrt(12), abs=0.03)


def test_loguniform_has_a_uniform_logarithm() -> None:
    values = draws("loguniform(1e-4,1e-1)")
    assert min(values) >= 1e-4 and max(values) <= 1e-1
    logs = [math.log10(value) for value in values]
    assert statistics.mean(logs) == pytest.approx(-2.5, abs=0.03)
    assert all(3150 < sum(-k - 1 <= log < -k for log in logs) < 3520 for k in (1, 2, 3))


def test_quniform_is_round_of_uniform_by_q_times_q() -> None:
    # TUNE: round(Uniform(0, 1) / 0.25) * 0.25: the ends have half the probability.
    counts = Counter(draws("quniform(0,1,0.25)"))
    assert sorted(counts) == [0, 0.25, 0.5, 0.75, 1]
    assert all(1130 < counts[end] < 1370 for end in (0, 1)) and all(2350 < counts[x] < 2650 for x in (0.25, 0.5, 0.75))


def test_qloguniform_is_round_of_exp_of_uniform_by_q_times_q() -> None:
    values = draws("qloguniform(1,1000,10)")
    assert set(values) == set(range(0, 1001, 10))
    # P(0) is log(5) / log(1000), P(10) is log(15 / 5) / log(1000).
    counts = Counter(values)
    assert counts[0] == pytest.approx(10_000 * math.log(5) / math.log(1000), rel=0.06)
    assert counts[10] == pytest.approx(10_000 * math.log(3) / math.log(1000), rel=0.06)


def test_normal_and_qnormal_have_mu_and_sigma() -> None:
    for text in ("normal(10,3)", "qnormal(10,3,0.5)"):
        values = draws(text)
        assert statistics.mean(values) == pytest.approx(10, abs=0.1)
        assert statistics.stdev(values) == pytest.approx(3, abs=0.1)
    assert all((value * 2).is_integer() for value in draws("qnormal(10,3,0.5)", 500))


def test_lognormal_and_qlognormal_have_mu_and_sigma_of_the_logarithm() -> None:
    logs = [math.log(value) for value in draws("lognormal(-7,0.5)")]
    assert statistics.mean(logs) == pytest.approx(-7, abs=0.02) and statistics.stdev(logs) == pytest.approx(
        0.5, abs=0.02
    )
    values = draws("qlognormal(3,0.5,1)")
    assert all(isinstance(value, int) for value in values)
    assert statistics.median(values) == pytest.approx(math.exp(3), abs=0.6)


def test_multiples_have_no_noise_of_floating_point() -> None:
    e = QUniform(0, 1, 0.1)
    assert {repr(quantile(e, u / 1000)) for u in range(1000)} == {f"{k / 10}" for k in range(11)}
    assert quantile(QNormal(1e6, 1, 1e-3), 0.5) == 1e6


@pytest.mark.parametrize("text", ["quniform(1,9,2)", "qloguniform(1,9,2)", "qnormal(5,1,2.0)", "qlognormal(1,1,1)"])
def test_multiples_of_an_integer_are_integers(text: str) -> None:
    assert all(type(value) is int for value in draws(text, 50))


EXAMPLES = [form[1] for form in FORMS[:-1]]


@pytest.mark.parametrize("e", EXAMPLES, ids=expression_text)
def test_quantile_never_decreases_and_the_ends_are_finite(e: Expression) -> None:
    values = [quantile(e, u) for u in (0.0, 1e-300, 1e-9, 0.1, 0.5, 0.9, 1 - 2**-53, 1.0)]
    assert values == sorted(values) and all(map(math.isfinite, values))
    assert all(type(value) in (int, float) for value in values)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.floats(1e-3, 1), st.floats(0, 1, exclude_max=True))
def test_quniform_is_a_nearby_multiple(low: float, width: float, part: float, u: float) -> None:
    e = QUniform(low, low + width, width * part)
    try:
        check_expression("p", e)
    except SpecError:
        return
    value = quantile(e, u)
    assert low - e.q / 2 - 1e-6 <= value <= low + width + e.q / 2 + 1e-6
    assert value / e.q == pytest.approx(round(value / e.q), rel=1e-12, abs=1e-9)


# -- grids -----------------------------------------------------------------------------------------------------------


def space_of(**texts: str) -> dict[str, Expression]:
    return {name: parse_expression(name, text) for name, text in texts.items()}


def test_grid_varies_the_last_parameter_fastest() -> None:
    space = space_of(a="choice(x,y)", b="randint(2)", c="quniform(0,1,0.5)")
    assert grid_size(space) == 12
    points = [grid_point(space, index) for index in range(12)]
    assert points[:4] == [
        {"a": "x", "b": 0, "c": 0.0},
        {"a": "x", "b": 0, "c": 0.5},
        {"a": "x", "b": 0, "c": 1.0},
        {"a": "x", "b": 1, "c": 0.0},
    ]
    assert len({str(point) for point in points}) == 12
    with pytest.raises(IndexError):
        grid_point(space, 12)


def test_grid_enumerates_options_conditionally() -> None:
    space = space_of(opt="choice({m: sgd, lr: choice(1,2)}, {m: adam}, none)", b="choice(x,y)")
    points = [grid_point(space, index) for index in range(grid_size(space))]
    assert points == [
        {"m": "sgd", "lr": 1, "b": "x"},
        {"m": "sgd", "lr": 1, "b": "y"},
        {"m": "sgd", "lr": 2, "b": "x"},
        {"m": "sgd", "lr": 2, "b": "y"},
        {"m": "adam", "b": "x"},
        {"m": "adam", "b": "y"},
        {"opt": "none", "b": "x"},
        {"opt": "none", "b": "y"},
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("e", [QUniform(1, 10, 4), QUniform(0.5, 3.5, 1), QLogUniform(1, 50, 7), RandInt(3)])
def test_grid_has_exactly_the_values_that_draws_have(e: Expression) -> None:
    points = [grid_point({"p": e}, index)["p"] for index in range(grid_size({"p": e}))]
    assert points == sorted({quantile(e, (k + 0.5) / 10_000) for k in range(10_000)})
    assert as_choice(e) == Choice(tuple(points))


@pytest.mark.parametrize("kind", ["uniform", "loguniform", "normal", "qnormal", "lognormal", "qlognormal"])
def test_grid_over_a_continuous_expression_is_refused(kind: str) -> None:
    e = next(e for e in EXAMPLES if expression_text(e).startswith(f"{kind}("))
    assert not is_finite(e) and not is_finite(Choice(({"p": e},)))
    for space in ({"p": e}, {"g": Choice(({"p": e},))}):
        with pytest.raises(SpecError, match=kind) as caught:
            check_grid(space)
        assert caught.value.code == "space.grid" and caught.value.field == "space.p"


def test_grid_of_more_than_100000_points_is_refused() -> None:
    check_grid({"a": RandInt(1000), "b": RandInt(100)})
    with pytest.raises(SpecError, match="101,000"):
        check_grid({"a": RandInt(1000), "b": RandInt(101)})


def test_grid_has_repeated_options_of_a_file_once() -> None:
    e = expression_from_file({"type": "choice", "values": [1, 1, True, 1.0]})
    assert grid_size({"p": e}) == 3


# -- conditional parameters ------------------------------------------------------------------------------------------

NESTED = {
    "opt": "choice({m: sgd, lr: uniform(0,1), s: choice({k: step, n: randint(3)}, {k: cosine})}, {m: adam}, none)",
    "b": "choice(x,y)",
}


def test_dimensions_have_one_key_for_each_expression() -> None:
    assert list(dimensions(space_of(**NESTED))) == ["opt", "opt.0.lr", "opt.0.s", "opt.0.s.0.n", "b"]


def test_proposal_has_only_parameters_of_its_options() -> None:
    space = space_of(**NESTED)
    middle = dict.fromkeys(dimensions(space), 0.0)
    assert quantile_point(space, middle) == {"m": "sgd", "lr": 0, "k": "step", "n": 0, "b": "x"}
    assert quantile_point(space, middle | {"opt.0.s": 0.9}) == {"m": "sgd", "lr": 0, "k": "cosine", "b": "x"}
    assert quantile_point(space, middle | {"opt": 0.5}) == {"m": "adam", "b": "x"}
    assert quantile_point(space, middle | {"opt": 0.9}) == {"opt": "none", "b": "x"}


def test_active_parameters_are_those_of_the_proposal() -> None:
    space = space_of(**NESTED)
    active = active_parameters(space, {"m": "sgd", "lr": 0.5, "k": "cosine", "b": "y"})
    assert active == {"m": Choice(("sgd",)), "lr": Uniform(0, 1), "k": Choice(("cosine",)), "b": Choice(("x", "y"))}
    with pytest.raises(ValueError, match="proposal"):
        active_parameters(space, {"m": "sgd", "b": "y"})


@given(st.integers(0, 10**6))
def test_positions_invert_proposals(seed: int) -> None:
    rng, space = random.Random(seed), space_of(**NESTED, q="qlognormal(1,1,0.5)", l="choice([1,2],[3])")
    values = quantile_point(space, {key: rng.random() for key in dimensions(space)})
    assert positions(space, values) is not None
    assert active_parameters(space, values).keys() == values.keys()


def test_every_expression_has_a_class() -> None:
    assert set(EXPRESSIONS) == {form[2]["type"] for form in FORMS}
