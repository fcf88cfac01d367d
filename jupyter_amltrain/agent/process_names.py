"""Whose a process is and what it runs, in a few words that hold no secret."""

from __future__ import annotations

import os
from typing import List

#: Characters of a command and of a user's name.
MAX_NAME = 60


def user_of(pid: int) -> str:
    """Name (or number) of a process's user; empty for a process that is not here."""
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return ""
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name[:MAX_NAME]
    except (ImportError, KeyError):
        return str(uid)


def comm_of(pid: int) -> str:
    """Command name as the kernel has it (15 characters); empty for a process that is not here."""
    try:
        with open("/proc/%d/comm" % pid, "rb") as file:
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def command_of(pid: int) -> str:
    """Program and script of a process, such as ``python train.py``; its other arguments may hold secrets."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            words = file.read(4096).decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    return (brief(words) or comm_of(pid))[:MAX_NAME]


def brief(words: List[str]) -> str:
    """The program of a command line, and the script or module that an interpreter runs."""
    program = os.path.basename(words[0].split(" ")[0]) if words else ""
    if not program.startswith(("python", "pypy", "torchrun", "accelerate", "deepspeed")):
        return program
    rest = [word for word in words[1:] if word]
    for at, word in enumerate(rest):
        if word == "-m" and at + 1 < len(rest):
            return "%s -m %s" % (program, rest[at + 1])
        if word == "-c":
            break
        if not word.startswith("-"):
            # What stands after an option may be its value, so only a script's name is told.
            if word.endswith((".py", ".pyz")):
                return "%s %s" % (program, os.path.basename(word))
            break
    return program
