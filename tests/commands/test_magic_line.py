from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jupyter_amltrain.commands import magic_line
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs import flag_types


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"))))
def test_quoted_words_round_trip_is_equal(words: list[str]) -> None:
    import shlex

    assert magic_line.split(" ".join(map(shlex.quote, words))) == words


#: Python writes an infinity as a name, which is no literal.
python_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(python_values, python_values)
@example(None, {"'\"": None})
def test_ipython_value_is_one_word(one: Any, two: Any) -> None:
    """`--param x=$x` for lists and mappings, as Python writes them."""
    line = f"--param x={[one]!r} --param y={ {'k': two}!r} --wait"
    words = magic_line.split(line)
    assert [words[0], words[2], words[4]] == ["--param", "--param", "--wait"]
    assert flag_types.param(words[1]) == ("x", [one]) and flag_types.param(words[3]) == ("y", {"k": two})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('o={"a": 1} -x', ['o={"a": 1}', "-x"]),
        ("'o={\"a\": [1, 2]}' b", ['o={"a": [1, 2]}', "b"]),
        ("a[ 'b c'", ["a[", "b c"]),
        ("a(it's) 'b c'", None),
        ("a\\[ b", ["a[", "b"]),
        ("(a 'b)c' d) e", ["(a 'b)c' d)", "e"]),
        ("a)b c", ["a)b", "c"]),
    ],
)
def test_bracketed_words_are_not_split(line: str, words: list[str] | None) -> None:
    if words is None:
        with pytest.raises(CommandError):
            magic_line.split(line)
    else:
        assert magic_line.split(line) == words


def test_unclosed_quote_is_refused() -> None:
    with pytest.raises(CommandError, match="quotation"):
        magic_line.split("--name 'it")


@pytest.mark.parametrize(
    ("line", "expanded"),
    [
        ("--metric 'a=b {value}' --name {x}", "--metric 'a=b {value}' --name X"),
        ("--metric='a=b {value}' {x}", "--metric='a=b {value}' X"),
        ("--metric a={value} {x}", "--metric a={value} X"),
        ("--metrics 'a={value}' {x}", "--metrics 'a={value}' X"),
        (
            "--tag a={x} --metric 'a=\\0 {step}'  --metric 'b={value}'",
            "--tag a=X --metric 'a=\\0 {step}' --metric 'b={value}'",
        ),
        ("--name {x} 'open", "--name X 'open"),
    ],
)
def test_variables_are_expanded_but_not_places_of_a_pattern(line: str, expanded: str) -> None:
    def expand(text: str) -> str:
        assert "{value}" not in text
        return text.replace("{x}", "X")

    assert magic_line.expanded(line, expand) == expanded


def test_unexpanded_variable_is_refused() -> None:
    magic_line.check_expanded(["lr=0.1", "--param", "x={}", 'x={"a": 1}', "cost=5$"], {})
    with pytest.raises(CommandError, match=r"\$lr"):
        magic_line.check_expanded(["--param", "n=$n", "lr=$lr"], {"n"})
    with pytest.raises(CommandError, match=r"\{lr\}"):
        magic_line.check_expanded(["lr={lr}"], ())
    with pytest.raises(CommandError, match="did not expand"):
        magic_line.check_expanded(["lr=$lr"], {"lr"})


def test_trailing_semicolon_is_ignored() -> None:
    assert magic_line.split("logs last --tail 3; ") == ["logs", "last", "--tail", "3"]
    assert magic_line.split("--param 'a=x;'") == ["--param", "a=x;"]
