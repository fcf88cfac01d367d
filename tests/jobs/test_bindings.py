"""A parameter's value is the one that the cell runs with, or the cell is refused."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.errors import PreflightError
from jupyter_amltrain.jobs import bindings, preflight, script


@pytest.mark.parametrize(
    ("text", "line", "becomes"),
    [
        ("lr = 0.1\nprint(lr)", 2, "lr = 0.3  # --param, was 0.1"),
        ("lr = -1 # learning rate\nprint(lr)", 2, "lr = 0.3  # --param, was -1 # learning rate"),
        ("lr = (0.1)\nprint(lr)", 2, "lr = 0.3  # --param, was 0.1"),
        ("lr: float = 0.1\nprint(lr)", 2, "lr: float = 0.3  # --param, was 0.1"),
        ("lr = None; print(lr)", 2, "lr = 0.3; print(lr)"),
        ("'''doc'''; lr = 'ü'; print(lr)", 2, "'''doc'''; lr = 0.3; print(lr)"),
        ("from __future__ import annotations; lr = [1]; print(lr)", 2, "pass; lr = 0.3; print(lr)"),
        ("with open('f') as f:\n    lr = 0.1\nprint(lr)", 3, "    lr = 0.3  # --param, was 0.1"),
        ("if __name__ == '__main__':\n    lr = 0.1\n    print(lr)", 3, "    lr = 0.3  # --param, was 0.1"),
        ("def step(): return lr\nlr = 0.1\nstep()", 3, "lr = 0.3  # --param, was 0.1"),
        ("lr = 0.2\nlr = 0.1\nprint(lr)", 3, "lr = 0.3  # --param, was 0.1"),
        ("if fast: lr = 1\nlr = 0.1\nprint(lr)", 3, "lr = 0.3  # --param, was 0.1"),
    ],
)
def test_literal_assignment_of_param_is_replaced_in_line(text: str, line: int, becomes: str) -> None:
    made = script.from_cell(text, params={"lr": 0.3})
    assert made.text.splitlines()[line - 1] == becomes
    assert any(f" {line} " in note or f" {line} runs" in note for note in made.notes)
    assert made.sha256 == script.from_cell(text).sha256


def test_multiline_literal_of_param_keeps_line_numbers() -> None:
    made = script.from_cell('x = 1\nlr = """a\nb\n"""; y = lr\nz = 1 / 0', params={"lr": "one"})
    assert made.text.splitlines()[5] == "z = 1 / 0"
    names: dict[str, Any] = {}
    with pytest.raises(ZeroDivisionError):
        exec(made.text, names)
    assert names["y"] == "one"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = 1\nlr = compute()", 3),
        ("a, lr = 1, 2", 2),
        ("a, *lr = 1, 2", 2),
        ("a = lr = 3", 2),
        ("import lr", 2),
        ("import lr.sub", 2),
        ("from x import rate as lr", 2),
        ("def lr(): pass", 2),
        ("class lr: pass", 2),
        ("with f() as lr:\n    pass", 2),
        ("for lr in (1, 2):\n    print(lr)", 2),
        ("print(lr := 3)", 2),
        ("lr: float = compute()", 2),
        ("global lr", 2),
        ("lr = 0.1\nlr = compute()", 3),
        ("if fast:\n    lr = 1\nelse:\n    lr = 2\nprint(lr)", 3),
        ("try:\n    lr = int('x')\nexcept ValueError:\n    lr = 2", 3),
        ("match x:\n    case 1:\n        lr = 1\n    case _:\n        lr = 2\nprint(lr)", 4),
        ("def f(): return lr\nlr = compute()\nf()", 3),
    ],
)
def test_computed_assignment_of_param_is_refused_with_line(text: str, line: int) -> None:
    with pytest.raises(PreflightError, match=rf"--param lr: Cell line {line}, ") as caught:
        script.from_cell(text, params={"lr": 0.3})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "lr = lr * 0.9",
        "lr *= 0.9",
        "print(lr)\nlr = 0.1",
        "lr = globals().get('lr', 0.1)",
        "lr = lr if lr else 1",
        "if lr is None:\n    lr = 0.1",
        "for i in range(3):\n    print(lr)\n    lr = lr / 2",
        "def f(lr=lr):\n    lr = 2\nprint(f())",
        "def f():\n    lr = 2\nprint(lr)",
        "class C:\n    lr = lr\nlr = 1",
        "[lr for lr in x]\nprint(lr)",
        "def f(): return lr\nf()\nlr = compute()",
        "f = lambda: lr\nf()\nlr = compute()",
        "x[lr] = 1\nlr = 2",
        "lr += 1; lr = 2",
        "while lr > 1:\n    lr = 1",
        "with f(lr) as x:\n    lr = 1",
        "try:\n    lr\nexcept NameError:\n    lr = 1",
    ],
)
def test_assignment_after_read_of_param_is_accepted(text: str) -> None:
    made = script.from_cell(text, params={"lr": 0.3})
    assert made.text == f"lr = 0.3\n{text}\n" and made.notes == ()


@pytest.mark.parametrize(
    "text",
    [
        "if fast:\n    lr = 1\nprint(lr)",
        "for i in x:\n    lr = 1\nprint(lr)",
        "y = a and (lr := 1)\nprint(lr)",
        "def f():\n    global lr\n    lr = 1\nf()\nprint(lr)",
        "class C:\n    def f(self):\n        global lr\n        for lr in x: pass\nC().f()\nprint(lr)",
    ],
)
def test_conditional_assignment_of_param_adds_note(text: str) -> None:
    made = script.from_cell(text, params={"lr": 0.3})
    assert made.text.endswith(f"{text}\n") and len(made.notes) == 1 and "may assign" in made.notes[0]


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("n_epochs = 3\nprint(n_epochs)", "n_epochs"),
        ("for e in range(epoch): pass", "epoch"),
        ("import epoch_tools\nclass C:\n    epochs = 3", ""),
        ("print(1)", ""),
    ],
)
def test_unused_param_adds_note_with_similar_names(text: str, near: str) -> None:
    made = script.from_cell(text, params={"epochs": 3})
    (note,) = made.notes
    assert "epochs" in note
    assert (f"Did you mean {near}?" in note) if near else ("Did you mean" not in note or "epoch_tools" in note)


@pytest.mark.parametrize(
    "text",
    [
        "print(epochs)",
        "def f(): return epochs",
        "class C:\n    def f(self): return epochs",
        "x = [epochs for _ in y]",
        "print(f'{epochs}')",
        "df.query('x > @epochs')",
        "exec('print(epo' + 'chs)')",
        "print('{}'.format(**globals()))",
        "from tools import *\ntrain()",
        "import __main__, tools",
        "epochs += 1",
    ],
)
def test_possibly_read_param_adds_no_note(text: str) -> None:
    assert script.from_cell(text, params={"epochs": 3}).notes == ()


@pytest.mark.parametrize(
    "text",
    [
        "def train(epochs=3):\n    print('epochs:', epochs)\ntrain()",  # a parameter of the function
        "print('epochs')",
        "import mlflow\nmlflow.log_param('epochs', 3)",
        "config = {'epochs': 3}",
        "fit(epochs=3)",
        "model.epochs = 3",
        "[epochs for epochs in range(3)]",
        "lambda epochs: epochs",
        "class Config:\n    epochs: int = 3\nprint(Config().epochs)",
        "def f():\n    epochs = 3\n    return epochs",
        "import argparse\nargparse.ArgumentParser().add_argument('--epochs')",
    ],
)
def test_param_whose_name_means_something_else_adds_note(text: str) -> None:
    (note,) = script.from_cell(text, params={"epochs": 5}).notes
    assert "nothing" in note and "epochs" in note


@pytest.mark.parametrize(
    "text",
    ["df.eval('y = epochs * x')", "import numexpr as ne\nne.evaluate('2 * epochs')", "duckdb.sql('from epochs')"],
)
def test_param_in_text_that_is_code_adds_no_note(text: str) -> None:
    assert script.from_cell(text, params={"epochs": 3}).notes == ()


def test_param_that_function_of_the_notebook_reads_adds_no_note() -> None:
    made = script.from_cell("train()", params={"epochs": 3}, known=["train"], helpers="def train(): return epochs")
    assert made.notes == ()


def test_param_as_output_is_read() -> None:
    assert script.from_cell("x = 1", params={"epochs": 3}, out=["epochs"]).notes == ()


class Reads(dict[str, Any]):
    """Names of a module; the first value of `lr` that is read is kept."""

    first: Any = None

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if name == "lr" and self.first is None:
            self.first = value
        return value


class Scope:
    def __enter__(self) -> float:
        return 0.5

    def __exit__(self, *_: object) -> None: ...


simple = st.sampled_from(
    ["lr = 0.1", "lr = lr * 2", "lr *= 2", "lr", "lr = one()", "x = 1", "x, lr = 1, 2", "lr: float = 7", "del x",
     "x = lr = 3", "(lr := 4)", "x = flag() and (lr := 4)", "x = lr if flag() else 1"]
)  # fmt: skip


def blocks(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    heads = ["if flag():", "for i in (1, 2):", "with Scope():", "with Scope() as lr:", "if True:",
             "while True:"]  # fmt: skip

    def made(head: str, body: list[str]) -> str:
        lines = [line for part in body for line in part.split("\n")]
        lines += ["break"] if head == "while True:" else []
        return "\n".join([head, *(f"    {line}" for line in lines)])

    return st.builds(made, st.sampled_from(heads), st.lists(inner, min_size=1, max_size=3)) | st.builds(
        lambda a, b, c: f"try:\n    {a}\nexcept ZeroDivisionError:\n    {b}\nfinally:\n    {c}", simple, simple, simple
    )


programs = st.lists(st.recursive(simple, blocks, max_leaves=6), min_size=1, max_size=6).map("\n".join)


@given(programs)
def test_accepted_cell_reads_param_value_first(text: str) -> None:
    try:
        made = script.from_cell(text, params={"lr": 0.3})
    except PreflightError:
        return
    assert len(made.text.partition("\n# ---- added")[0].splitlines()) == len(text.splitlines()) + 1
    if any("may assign" in note for note in made.notes):
        return
    first = set()
    for seed in range(32):  # a branch that reads it first protects what follows, taken or not
        throw = random.Random(seed).random
        names = Reads(flag=lambda throw=throw: throw() < 0.5, one=lambda: 1, Scope=Scope, x=0, range=range)
        with contextlib.suppress(NameError):  # `del x` twice
            exec(compile(made.text, "cell", "exec"), {}, names)
        first.add(names.first)
    assert first & {None, 0.3}
    if first == {None}:
        assert names["lr"] == 0.3 or "nothing in the cell reads" in " ".join(made.notes)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a = 1\nb: int = 2\nc += 1\n(d := 3)\n[e for e in x if (f := e)]", "abcdf"),
        ("for a, (b, *c) in x: pass\nwith f() as (d, e): pass\nimport g.h, i as j", "abcdegj"),
        ("def a(): pass\nclass b: c = 1\nasync def d(e): pass", "abd"),
        ("try:\n    pass\nexcept E as a:\n    b = 1\nfinally:\n    c = 1", "abc"),
        ("match x:\n    case [a, *b]: pass\n    case {'k': c, **d}: pass\n    case C(e) as f: pass", "abcdef"),
        ("def f():\n    global a\n    a = 1\n    b = 1\n    def g():\n        global c\n        import c", "acf"),
        ("if x:\n    while y:\n        a = 1", "a"),
    ],
)
def test_assigned_names_are_found(text: str, names: str) -> None:
    assert bindings.names_of(preflight.parse(text), text).assigned == set(names)


@pytest.mark.parametrize(
    "statement",
    ["assert lr", "raise lr", "del lr", "lr.x = 1", "lr[0] = 1", "f(lr)", "@lr\ndef f(): pass", "import x; lr",
     "def f(x=lr): pass", "class C(lr): pass", "class C(metaclass=lr): pass"],
)  # fmt: skip
def test_statement_reading_param_allows_later_assignment(statement: str) -> None:
    made = script.from_cell(f"{statement}\nlr = compute()", params={"lr": 1})
    assert made.text.endswith("lr = compute()\n")
