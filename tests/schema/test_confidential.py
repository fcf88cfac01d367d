"""A secret is refused by every door, and nothing else is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.secret_values import looks_secret
from jupyter_amltrain.errors import CommandError, SpecError
from jupyter_amltrain.schema.inputs import JobInput
from jupyter_amltrain.schema.job import JobSpec, Resources, validated

GITHUB = "ghp_" + "a1B2" * 9
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc"
VALUES = [
    GITHUB,
    "github_pat_11ABC",
    "sk-" + "a1B2" * 6,
    "sk-proj-" + "a1B2" * 6,
    "AKIAABCDEFGHIJKLMNOP",
    "hf_" + "aB" * 12,
    "glpat-abcdefgh1234",
    JWT,
    f"Bearer {JWT}",
    "DefaultEndpointsProtocol=https;AccountKey=abc",
    "Server=db;User Id=me;Password=hunter2;",
    "https://me:hunter2@host/x",
    "postgresql://:hunter2@host",
    "https://x/?sv=1&sig=abc",
    "-----BEGIN RSA PRIVATE KEY-----",
    "Ab1+" * 21 + "Ab==",
]


@pytest.mark.parametrize("value", VALUES)
def test_secret_value_in_any_field_is_refused(value: str) -> None:
    specs: list[dict[str, Any]] = [
        {"params": {"x": value}},
        {"params": {"x": {"deep": [1, value]}}},
        {"params": {value: 1}},
        {"env": {"X": value}},
        {"tags": {"x": value}},
        {"tags": {value: "x"}},
        {"args": ("--x", value)},
        {"args": (f"--x={value}",)},
        {"experiment": value},
        {"name": value},
        {"inputs": {"x": JobInput(type="literal", value=value)}},
    ]
    for fields in specs:
        with pytest.raises(SpecError, match="secret") as caught:
            validated(JobSpec(**{"name": "n", "script": "pass", **fields}))
        assert value not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["password", "db_password", "dbPassword", "MYPASSWORD", "pwd", "apiKey", "api-key", "client_secret", "access_token",
     "private_key", "connection_string", "AWS_SECRET_ACCESS_KEY", "db_passwd", "credentials"],
)  # fmt: skip
def test_secret_like_name_in_any_field_is_refused(name: str) -> None:
    specs: list[dict[str, Any]] = [
        {"params": {name: "hunter2"}},
        {"params": {"db": {name: "hunter2"}}},
        {"env": {name.replace("-", "_"): "hunter2"}},
        {"tags": {name: "hunter2"}},
        {"args": (f"--{name}", "hunter2")},
        {"args": (f"--{name}=hunter2",)},
        {"resources": Resources(docker_args=f"-e {name}=hunter2")},
        {"resources": Resources(docker_args=f"--env={name}=hunter2")},
    ]
    for fields in specs:
        with pytest.raises(SpecError, match="--secret") as caught:
            validated(JobSpec(name="n", script="pass", **fields))
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["API_TOKEN=abcd", "DB_PASSWORD=x1", "hfToken=abcd", "DB_PASS=x1", "MYPASS=x1", "GH_PAT=x1", "WANDB_API_KEY=abc",
     "X_AUTH=a1B2c3D4e5F6g7H8", "PWD=hunter2", "PASSWORD=12345678"],
)  # fmt: skip
def test_secret_like_environment_variable_is_refused(text: str) -> None:
    name, _, value = text.partition("=")
    with pytest.raises(SpecError, match=f"--env-var {name} .*--secret {name}"):
        validated(JobSpec(name="n", env={name: value}))


@pytest.mark.parametrize(
    "text",
    ["max_tokens=100", "n_tokens=5", "token_dim=64", "passes=3", "author=ada", "author=7", "key_size=2048",
     "pad_token=<pad>", "eos_token=</s>", "mask_token=[MASK]", "cls_token=CLS", "token_type=bpe", "secret_seed=123456",
     "tokenizer=bert-base-uncased", "task=token_classification", "password_policy=strict", "secret_name=vault-entry",
     "pat=3", "secret=0", "key=lr", "first_pass=greedy", "bypass=hard", "compass=north", "authors=ada,bob",
     "auth=basic", "keyboard=us", "monkey=x", "passage=long text", "use_token=true", "note=a;b=c",
     "optimizer=sk-learn-gradient-boosting", "model=multi-task-classification-large-v2",
     "model=risk-assessment-model-version-1", "url=https://host:8080/a@b", "path=/data/tokens/v1",
     "secret_weight=1e-05", "token_file=/run/secrets/token", "hash=5f4dcc3b5aa765d61d8327deb882cf99"],
)  # fmt: skip
def test_harmless_name_with_secret_word_is_accepted(text: str) -> None:
    name, _, value = text.partition("=")
    params = {name: json.loads(value) if value.isdigit() else value}
    fields: list[dict[str, Any]] = [{"params": params}, {"tags": {name: value}}, {"args": (f"--{name}", value)}]
    for one in fields:
        validated(JobSpec(name="n", script="pass", **one))


@pytest.mark.parametrize(
    "text",
    ["TOKENIZERS_PARALLELISM=false", "MAX_TOKENS=100", "PAD_TOKEN=0", "OMP_NUM_THREADS=2", "PYTHONPATH=a:b",
     "TOKEN_FILE=/run/secrets/token", "DATA=https://host:8080/a@b", "KEYBOARD=us", "PASSES=3", "AUTHOR=ada",
     "BYPASS=hard"],
)  # fmt: skip
def test_harmless_environment_variable_with_secret_word_is_accepted(text: str) -> None:
    name, _, value = text.partition("=")
    validated(JobSpec(name="n", env={name: value}))


@pytest.mark.thorough
def test_long_text_is_not_taken_for_secret() -> None:
    long = ["a1" * 500_000, "sk-" * 300_000, "://a:" * 20_000, "eyJ" * 300_000, "A" * 1_000_000, ";pwd " * 200_000]
    assert not any(looks_secret("text", text) for text in long)


LINES = ["--param password=hunter2", "--env-var DB_PASS=hunter2", f"--tag ci={GITHUB}", f"--name {GITHUB}",
         f"--experiment {GITHUB}", "--docker-args '-e HF_TOKEN=hunter2'",
         "--input password=hunter2,literal"]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_secret_in_submit_line_is_refused(line: str) -> None:
    from jupyter_amltrain.commands import magic_line
    from jupyter_amltrain.commands.forms import compose
    from jupyter_amltrain.commands.submit import parse_submit

    with pytest.raises(CommandError, match="secret") as caught:
        parse_submit(magic_line.split(line), "pass")
    assert "hunter2" not in str(caught.value) and GITHUB not in str(caught.value)
    assert "secret" in str(compose(f"%%aml_submit {line}", None, cell="pass").errors)


def test_secret_in_api_call_is_refused_and_not_written(home: Path, api: Any) -> None:
    calls: list[dict[str, Any]] = [
        {"params": {"password": "hunter2"}}, {"env": {"AWS_SECRET_ACCESS_KEY": "hunter2"}}, {"tags": {"ci": GITHUB}},
        {"args": ["--api-key=hunter2"]}, {"name": GITHUB}, {"experiment": GITHUB},
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(CommandError, match="secret"):
            api.submit("pass", **call)
    assert not api.runs()
    Path("train.py").write_text("pass")
    command = [sys.executable, "-m", "jupyter_amltrain.cli", "submit", "train.py", "--", "--password", "hunter2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "secret" in done.stderr and "hunter2" not in done.stderr
