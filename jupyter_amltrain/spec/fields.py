"""Forms as data: one description serves the magic's flags, its help, its errors and the panel's form."""

from __future__ import annotations

from typing import Any

import msgspec


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One value that a person can give.

    Attributes
    ----------
    name
        Key of the value: a field of a target's Struct, or what the command's parser calls it.
    flag
        What is typed for it, ``--max-nodes``; empty for the positional name.
    kind
        ``text``, ``int``, ``number``, ``bool``, ``choice``, ``list`` (texts), ``target`` (name of a target).
    help
        One sentence, the same as in the command's help.
    default
        JSON value that holds when nothing is given; ``None`` for none.
    metavar
        A word for the value, with its unit: ``SECONDS``, ``K=V``.
    advanced
        Not shown until asked for.
    """

    name: str
    flag: str = ""
    kind: str = "text"
    help: str = ""
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()
    metavar: str = ""
    advanced: bool = False


class TargetKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of target that can be created or attached here.

    Attributes
    ----------
    verb
        ``create`` (something is made) or ``attach`` (it is there already).
    title, help
        What a person calls it; one sentence about it.
    """

    kind: str
    verb: str
    title: str
    help: str = ""
    fields: tuple[Field, ...] = ()


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """Something that can be done with a target now.

    Attributes
    ----------
    verb
        Of ``%aml_compute``: ``use``, ``test``, ``start``, ``stop``, ``scale``, ``delete``, ...
    ask
        What it costs or loses, one or two sentences; empty where nothing has to be asked. Where the
        fields decide, the answer of the ``act`` request asks instead.
    why_not
        Why it cannot be done now; empty when it can.
    fields
        What has to be given, e.g. the number of nodes for ``scale``.
    """

    verb: str
    ask: str = ""
    why_not: str = ""
    fields: tuple[Field, ...] = ()
