"""What looks like a secret in a job: it would be stored with the run, and shown to everybody who sees that."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.errors import SpecError

if TYPE_CHECKING:
    from jupyter_amltrain.spec.job import JobSpec

# Values that tell by themselves. A key has digits, `risk-assessment-model` and `sk-learn-pipeline` have none.
_VALUE = re.compile(
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_\w{20}|\bgithub_pat_\w|\bhf_[A-Za-z0-9]{20}|\bglpat-[\w-]{8}"
    r"|(?<![\w-])sk-(?=[\w-]*\d)(?:[a-z0-9]+-){0,3}\w{16}|\bxox[abeoprs]-\w|\bAIza[\w-]{35}|\bnpm_[A-Za-z0-9]{30}"
    r"|\bpypi-AgEI|\bdapi[0-9a-f]{32}|\beyJ[\w-]{10,}\.eyJ|\bBearer\s+[\w.~+/-]{20}|-----BEGIN"
    r"|AccountKey=|SharedAccess(?:Key|Signature)|[?&]sig=|://[^/\s:@]*:[^/\s@]+@"
    r"|(?i:;\s*(?:password|passwd|pwd)\s*=\s*[^\s;])|(?i:^(?:password|passwd|pwd)=[^\s;]+;)|(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{86}=="
)
# Words of a name that tell by themselves, alone or at the end of a word (MYPASSWORD).
_WORDS = frozenset(
    ["PASSWORD", "PASSWD", "PASSPHRASE", "PWD", "SECRET", "SECRETS", "APIKEY", "CREDENTIAL", "CREDENTIALS"]
)
_ENDS = ("PASSWORD", "PASSWD", "PASSPHRASE", "APIKEY", "SECRET")
_PAIRS = frozenset(
    ["API KEY", "ACCESS KEY", "PRIVATE KEY", "ACCOUNT KEY", "STORAGE KEY", "CONNECTION STRING", "SAS KEY", "SAS TOKEN",
     "ACCESS TOKEN", "AUTH TOKEN", "BEARER TOKEN", "REFRESH TOKEN"]
)  # fmt: skip
#: Of an environment variable they tell; of a parameter they are mostly a tokenizer's, a patience, a forward pass.
_ENV_WORDS = ("TOKEN", "PAT", "PASS")
#: They need a value that nobody would think up.
_WEAK_WORDS = frozenset([*_ENV_WORDS, "AUTH"])
#: What is said *of* a secret is none: PASSWORD_FILE, token_type, secret_name.
_ABOUT = frozenset(
    ["FILE", "PATH", "DIR", "URL", "URI", "NAME", "TYPE", "POLICY", "MODE", "FORMAT", "LENGTH", "LEN", "SIZE", "DIM",
     "COUNT", "LIMIT", "TTL", "SCOPE", "FIELD", "COLUMN", "HEADER", "CLASSIFICATION", "PROMPT", "SEED", "RATE",
     "STRATEGY", "VARIABLE"]
)  # fmt: skip
_HARMLESS = re.compile(r"(?:-?[\d.]*|-?[\d.]+e[+-]?\d+|true|false|yes|no|on|off|none|null|<\w*>|\[\w*\]|</?\w+>)", re.I)
_PIN = re.compile(r"[\d.]{5,}")
_GENERATED = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w.~+=-]{16,}")


def looks_secret(name: str, value: str, *, env: bool = False) -> bool:
    """Return whether a value should be handed over by ``--secret``.

    Parameters
    ----------
    name
        As it was given: ``DB_PASS``, ``api-key``, ``dbPassword``; empty for a value alone.
    env
        It is an environment variable, of which less is needed to believe it.
    """
    if _VALUE.search(value):
        return True
    words = re.sub(r"[^A-Z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()).strip("_").split("_")
    if words[-1] in _ABOUT:
        return False
    certain = (
        not _WORDS.isdisjoint(words)
        or words[-1].endswith(_ENDS)
        or any(f"{a} {b}" in _PAIRS for a, b in zip(words, words[1:], strict=False))
    )
    if certain:
        return not _HARMLESS.fullmatch(value) or bool(_PIN.fullmatch(value))
    if env and ("TOKEN" in words or words[-1] in _ENV_WORDS or _glued(words[-1])):
        return not _HARMLESS.fullmatch(value)
    return words[-1] in _WEAK_WORDS and _GENERATED.fullmatch(value) is not None


def _glued(word: str) -> bool:
    """Whether a word ends with ``PASS`` and is none of the language's own."""
    return word.endswith("PASS") and word not in ("BYPASS", "COMPASS", "SURPASS", "LOWPASS", "HIGHPASS", "BANDPASS")


#: Fields of a job by what messages call them.
_FIELDS = {
    "--param": "params",
    "--env-var": "env",
    "--tag": "tags",
    "--name": "name",
    "--experiment": "experiment",
    "--input": "inputs",
    "An argument": "args",
    "--docker-args": "resources.docker_args",
}


def check_confidential(spec: JobSpec) -> None:
    """Raise :class:`SpecError` for what looks like a secret; the message never holds the value."""
    for flag, name, value, env in _stored(spec):
        # What looks like a secret may be the name itself.
        if looks_secret(name, value, env=env) or _VALUE.search(name):
            shown = "" if _VALUE.search(name) else name
            variable = re.sub(r"\W", "_", shown) if shown and flag != "--tag" else "NAME"
            raise SpecError(
                f"{flag}{' ' if shown else ''}{shown} looks like a secret, and its value would be stored with the run.",
                hint=f"Write --secret {variable} (in Python secrets={{{variable!r}: ...}}), and in the code:"
                f" os.environ[{variable!r}]",
                code="spec.secret",
                field=_FIELDS[flag],
            )


def _stored(spec: JobSpec) -> Iterator[tuple[str, str, str, bool]]:
    """Flag, name and value of all that is stored in clear, and whether it is an environment variable."""
    for name, value in spec.params.items():
        yield from (("--param", *one, False) for one in _texts(name, value))
    for name, value in spec.env.items():
        yield "--env-var", name, value, True
    for name, value in spec.tags.items():
        yield "--tag", name, str(value), False
    yield "--name", "", spec.name, False
    yield "--experiment", "", spec.experiment, False
    for name, given in spec.inputs.items():
        if given.type == "literal":
            yield "--input", name, str(given.value), False
    yield from (("An argument", *one, False) for one in _arguments(spec.args))
    words = re.split(r"[\s'\"]+", spec.resources.docker_args)
    for word in words:
        name, equals, value = word.rpartition("--")[2].removeprefix("env=").partition("=")
        yield ("--docker-args", name, value, True) if equals else ("--docker-args", "", word, True)


def _texts(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Names and texts of a JSON value, those in lists and mappings too."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(name, inner)
    elif value is not None and not isinstance(value, bool):
        yield name, str(value)


def _arguments(args: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """``--name=value``, ``--name value``, and what stands alone."""
    flag = ""
    for word in map(str, args):
        name, equals, value = word.partition("=")
        if word.startswith("-") and equals:
            yield name.lstrip("-"), value
        else:
            yield flag, word
        flag = word.lstrip("-") if word.startswith("-") and not equals else ""
