"""The user's settings of pip, as variables of uv, which does not read them itself; addresses without passwords."""

from __future__ import annotations

import configparser
import os
import re
from typing import Dict, List, Mapping

#: Option of pip -> variable of uv, and whether it takes several values.
_OPTIONS = {
    "index-url": ("UV_DEFAULT_INDEX", False),
    "extra-index-url": ("UV_INDEX", True),
    "find-links": ("UV_FIND_LINKS", True),
    "no-index": ("UV_NO_INDEX", False),
    "cert": ("SSL_CERT_FILE", False),
}
#: Other names of these settings in uv; a variable that is set in any of its names is left alone.
_OTHER_NAMES = {"UV_DEFAULT_INDEX": ("UV_INDEX_URL",), "UV_INDEX": ("UV_EXTRA_INDEX_URL",)}
#: Which indexes uv searches: pip takes the best version of all; uv alone takes those of the first that has the package.
_STRATEGY = "UV_INDEX_STRATEGY"
#: Words in uv's own configuration file that set indexes: then those of pip are not used.
_INDEX_WORDS = ("index", "find-links")


_PASSWORD = re.compile(r"(?<=://)[^/\s@]+@")


def without_password(text: str) -> str:
    """Return a text with credentials in its addresses removed."""
    return _PASSWORD.sub("***@", text)


def uv_variables(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return variables of uv for settings that only pip has, from ``PIP_...`` and pip's configuration files.

    Without them a build on a machine with a package mirror would leave the mirror out. Variables of uv, and the
    indexes in uv's configuration file, take precedence.
    """
    if _has_own_indexes(environ):
        return {}
    stored = _stored(environ)
    variables = {}
    for option, (name, several) in _OPTIONS.items():
        value = environ.get("PIP_" + option.upper().replace("-", "_"), stored.get(option, "")).strip()
        if not value or any(environ.get(other) for other in (name, *_OTHER_NAMES.get(name, ()))):
            continue
        if option == "no-index":
            if value.lower() not in ("1", "true", "yes", "on"):
                continue
            value = "1"
        # uv separates indexes by white space like pip, and find-links by commas.
        variables[name] = ",".join(value.split()) if option == "find-links" else " ".join(value.split())
        if not several:
            variables[name] = variables[name].split()[0]
    if "UV_INDEX" in variables and not environ.get(_STRATEGY):
        variables[_STRATEGY] = "unsafe-best-match"
    return variables


def _has_own_indexes(environ: Mapping[str, str]) -> bool:
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "~"), ".config")
    paths = [environ.get("UV_CONFIG_FILE", ""), os.path.join(home, "uv", "uv.toml"), "/etc/uv/uv.toml"]
    for path in filter(None, paths):
        try:
            with open(os.path.expanduser(path), encoding="utf-8", errors="replace") as file:
                lines = [line.strip().lstrip("[") for line in file]
        except OSError:
            continue
        if any(line.startswith(_INDEX_WORDS) for line in lines):
            return True
    return False


def _stored(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the options in pip's configuration files, the user's over those of the system."""
    own = environ.get("PIP_CONFIG_FILE", "")
    if own == os.devnull:
        return {}
    home = environ.get("HOME", "~")
    config_home = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    paths: List[str] = [os.path.join(folder, "pip", "pip.conf") for folder in ("/etc/xdg",)]
    paths += ["/etc/pip.conf", os.path.join(home, ".pip", "pip.conf"), os.path.join(config_home, "pip", "pip.conf")]
    parser = configparser.RawConfigParser()
    for path in [*paths, own]:
        try:
            parser.read(os.path.expanduser(path), encoding="utf-8") if path else []
        except (configparser.Error, OSError, UnicodeDecodeError):  # pip refuses it, too
            continue
    values: Dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            values.update((name.replace("_", "-"), value) for name, value in parser.items(section))
    return values
