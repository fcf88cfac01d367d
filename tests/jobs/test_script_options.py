from __future__ import annotations

import pytest

from jupyter_amltrain.errors import SubmitError
from jupyter_amltrain.jobs.script_options import forms_of, options_of

ARGPARSE = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("data")
p.add_argument("-l", "--learning-rate", type=float)
p.add_argument("--no-cuda", action="store_true")
p.add_argument("--amp", action=argparse.BooleanOptionalAction)
p.add_argument("--sizes", nargs="+")
p.add_argument("--tag", action="append")
p.add_argument("--num-epochs", dest="epochs")
p.add_argument("--slow", dest="fast", action="store_false")
a = p.parse_args()
"""
CLICK = """
import click
@click.command()
@click.option("-l", "--learning-rate")
@click.option("--shout/--quiet", default=False)
@click.option("--fast", is_flag=True)
@click.option("--tag", multiple=True)
@click.option("--pair", nargs=2)
@click.argument("name")
def main(**kw): print(kw)
"""
TYPER = """
import typer
from typing import Annotated
def main(name: str, learning_rate: float = 0.1, fast: bool = False,
         n: Annotated[int, typer.Option("--number")] = 3, tags: list[str] = [],
         only: bool = typer.Option(False, "--only")):
    print(name)
typer.run(main)
"""


@pytest.mark.parametrize(
    ("text", "forms"),
    [
        (
            ARGPARSE,
            {
                "data": "positional",
                "learning_rate": "value --learning-rate",
                "no_cuda": "on --no-cuda",
                "amp": "pair --amp --no-amp",
                "sizes": "list --sizes",
                "tag": "repeat --tag",
                "epochs": "value --num-epochs",
                "fast": "off --slow",
            },
        ),
        (
            CLICK,
            {
                "learning_rate": "value --learning-rate",
                "shout": "pair --shout --quiet",
                "fast": "on --fast",
                "tag": "repeat --tag",
                "pair": "list --pair",
                "name": "positional",
            },
        ),
        (
            TYPER,
            {
                "name": "positional",
                "learning_rate": "value --learning-rate",
                "fast": "pair --fast --no-fast",
                "n": "value --number",
                "tags": "repeat --tags",
                "only": "on --only",
            },
        ),
    ],
)
def test_options_of_a_parser_are_read_from_its_source(text: str, forms: dict[str, str]) -> None:
    assert options_of(text) == (forms, True)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("import hydra\n@hydra.main(config_path='conf')\ndef main(cfg): pass", "joined {}="),
        ("from omegaconf import OmegaConf\ncfg = OmegaConf.from_cli()", "joined {}="),
        ("import fire\nfire.Fire(main)", "literal --{}="),
        ("from absl import app, flags\nflags.DEFINE_float('lr', 1, '')", "joined --{}="),
    ],
)
def test_style_of_a_library_is_for_all_parameters(text: str, form: str) -> None:
    assert options_of(text) == ({"*": form}, False)


@pytest.mark.parametrize(
    "more",
    [
        "p.parse_known_args()",
        "add_my_options(p)",
        "p.add_argument(name)",
        "p.add_subparsers()",
        "q = argparse.ArgumentParser(parents=[p])",
    ],
)
def test_parser_that_may_have_more_options_refuses_none(more: str) -> None:
    options = options_of(ARGPARSE + more)
    assert options.forms and not options.is_complete
    assert forms_of(ARGPARSE + more, ["other"], "train.py") == {}


def test_unknown_parameter_is_refused_with_a_near_one() -> None:
    with pytest.raises(SubmitError) as caught:
        forms_of(ARGPARSE, ["learning_rat"], "train.py")
    assert caught.value.code == "submit.unknown_param" and "learning_rate" in caught.value.hint
    assert forms_of(ARGPARSE, ["learning_rat"], "train.py", "hydra") == {"*": "joined {}="}


@pytest.mark.parametrize("text", ["x = 1", "import argparse", "this is argparse, no Python"])
def test_text_without_a_parser_has_no_options(text: str) -> None:
    assert options_of(text) == ({}, False)
