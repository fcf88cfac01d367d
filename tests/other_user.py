"""A second Unix user of the same machine: a process whose uid is not ours."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

OTHER_UID = 54321

needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root: the test plays a second Unix user"
)

# What a script may use is imported before the uid changes: the interpreter may lie in a private folder (0700).
_PROLOGUE = """
import base64, contextlib, errno, glob, http.client, io, json, os, pathlib, re, shutil, signal, socket, ssl, stat
import subprocess, sys, threading, time, traceback, urllib.error, urllib.parse, urllib.request
import encodings.idna
os.chdir("/")
os.setgroups([])
os.setresgid({uid}, {uid}, {uid})
os.setresuid({uid}, {uid}, {uid})
"""


def run_as_other_user(
    script: str, *args: str, timeout_s: float = 120, uid: int = OTHER_UID
) -> subprocess.CompletedProcess[str]:
    """Run Python source as another user, with nothing of our environment.

    Parameters
    ----------
    script
        Source of a program. It finds the usual modules of the standard library imported, and its
        arguments in ``sys.argv[1:]``.
    args
        Those arguments.
    timeout_s
        Seconds after which the process is killed.
    uid
        User and group id that the process takes; it keeps no supplementary group.

    Returns
    -------
    subprocess.CompletedProcess
        With text of stdout and stderr. The exit status is not checked.
    """
    return subprocess.run(
        [sys.executable, "-I", "-c", _PROLOGUE.format(uid=uid) + script, *args],
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
