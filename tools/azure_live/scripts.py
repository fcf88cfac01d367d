"""Scripts of the jobs in a round."""

from __future__ import annotations

#: Script of the long job; of its token, it prints only the remaining validity.
WORK = """
import base64, json, os, pathlib, time
import mlflow
rank = os.environ.get("RANK", "0")
if rank == "0":
    try:
        part = os.environ["AZUREML_RUN_TOKEN"].split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        print("token holds for", int(claims["exp"] - time.time()), flush=True)
    except Exception as error:
        print("token tells nothing:", type(error).__name__, flush=True)
    here = pathlib.Path("logs/amltrain-live")
    here.mkdir(parents=True, exist_ok=True)
    for name, mode in (("private.txt", 0o600), ("shared.txt", 0o644)):
        (here / name).write_text("seen\\n")
        (here / name).chmod(mode)
    pathlib.Path(os.environ["AML_OUTPUT_MODEL"], "weights.txt").write_text("1")
    pathlib.Path("outputs").mkdir(exist_ok=True)
    pathlib.Path("outputs/live.txt").write_text("1")
end = time.time() + float(os.environ["AMLT_LIVE_SECONDS"])
step = 0
while time.time() < end:
    if rank == "0":
        mlflow.log_metric("live", step, step=step)
    print("step", step, flush=True)
    step += 1
    time.sleep(min(5, max(0.1, end - time.time())))
"""

#: Prints a line, then runs into the time limit.
LIMIT = "import time\nprint('the code is here', flush=True)\ntime.sleep(600)\n"

#: Startup script of an instance: the first start succeeds, the second fails. The folder outlives a stop.
STARTUP = """#!/bin/bash
mark="${TMPDIR:-/var/tmp}/amlt-started"
[ -e "$mark" ] && exit 1
touch "$mark"
"""

FAIL = "print('fails on purpose')\nraise SystemExit(3)\n"

STAY = """
import signal, time
def on_sigterm(*_):
    began = time.time()
    print("got SIGTERM", flush=True)
    while True:
        print("alive for %.1f" % (time.time() - began), flush=True)
        time.sleep(0.5)
signal.signal(signal.SIGTERM, on_sigterm)
print("waits", flush=True)
time.sleep(3600)
"""
