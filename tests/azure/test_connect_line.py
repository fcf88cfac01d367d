"""The line that connects a workspace: written from a form, checked as the magic would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.azure.commands.connect import MAGIC, compose, connect_fields
from jupyter_amltrain.azure.workspaces import WorkspaceRef
from jupyter_amltrain.commands import magic_line
from jupyter_amltrain.commands.registry import parser_of

NAMES = {"subscription": "My subscription", "resource-group": "ml", "workspace": "ml-dev"}
TEXT = st.text(st.characters(min_codepoint=32, exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=30)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"subscription_id": "s", "resource_group": "ml", "workspace_name": "ml-dev"}))
    return path


def test_connect_form_has_every_flag_with_help() -> None:
    fields = connect_fields()
    flags = {flag for a in parser_of("compute", "%aml_compute").verbs["connect"]._actions for flag in a.option_strings}
    assert {field.flag for field in fields} == flags - {"-h", "--help"} and all(field.help for field in fields)
    assert [field.name for field in fields if field.advanced] == ["tenant"]
    (sign_in,) = [field for field in fields if field.kind == "choice"]
    assert sign_in.name == "sign-in" and sign_in.choices == ("auto", "browser", "device")


def test_connect_form_with_three_names_composes_line(tmp_path: Path) -> None:
    made = compose({**NAMES, "sign-in": "device", "name": ""}, [], tmp_path)
    line = f'{MAGIC} --subscription "My subscription" --resource-group ml --workspace ml-dev --sign-in device'
    assert (made.line, made.errors, made.note) == (line, {}, "")
    assert made.workspace == WorkspaceRef(
        subscription="My subscription", resource_group="ml", workspace="ml-dev", method="device"
    )


def test_connect_configuration_is_found_or_named(config: Path, tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    for given_, folder, line in (
        ({}, below, MAGIC),
        ({"config": str(config)}, Path("/"), f"{MAGIC} --config {config}"),
        ({"config": str(config), "name": "dev"}, Path("/"), f"{MAGIC} --config {config} --name dev"),
    ):
        made = compose(given_, [], folder)
        assert made.line == line and made.workspace is not None and made.workspace.workspace == "ml-dev"
        assert made.note.endswith("config.json names ml-dev in ml.")


@pytest.mark.parametrize(
    ("given_", "field", "sentence"),
    [
        ({}, "config", "No config.json in"),
        ({"name": "x"}, "config", "No config.json in"),
        ({"config": "nowhere.json"}, "config", "Cannot read nowhere.json"),
        ({"subscription": "s"}, "resource-group", "--resource-group and --workspace"),
        ({"subscription": "s", "resource-group": "g"}, "workspace", "--workspace"),
        ({"workspace": "w"}, "subscription", "--subscription and --resource-group"),
        ({**NAMES, "sign-in": "guess"}, "sign-in", "invalid choice: 'guess'"),
        ({**NAMES, "workspace": "a\nb"}, "workspace", "line break"),
        ({"region": "x"}, "region", "no field 'region'"),
    ],
)
def test_connect_form_invalid_value_error_names_field(
    given_: dict[str, Any], field: str, sentence: str, tmp_path: Path
) -> None:
    made = compose(given_, [], tmp_path)
    assert made.workspace is None and list(made.errors) == [field] and sentence in made.errors[field]


def test_connect_when_connected_needs_no_fields(tmp_path: Path) -> None:
    assert compose({}, ["dev"], tmp_path).workspace == WorkspaceRef()
    assert compose({"name": "dev"}, ["dev"], tmp_path).workspace == WorkspaceRef(name="dev")


def test_connect_form_leaves_notebook_variables_to_ipython(tmp_path: Path) -> None:
    made = compose({**NAMES, "workspace": "$ws"}, [], tmp_path)
    assert made.line.endswith('--workspace "$ws"') and not made.errors and made.workspace is None


@given(st.dictionaries(st.sampled_from([field.name for field in connect_fields() if not field.choices]), TEXT))
def test_composed_connect_line_is_parsed_to_same_values(given_: dict[str, str]) -> None:
    line = compose(given_, []).line
    args = parser_of("compute", "%aml_compute").parse(magic_line.split(line.removeprefix("%aml_compute")))
    for name, text in given_.items():
        assert (getattr(args, name.replace("-", "_")) or "") == text.strip()
