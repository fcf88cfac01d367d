"""The command line: what will be done, the question, one round."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from tools import azure_live
from tools.azure_live.report import tell
from tools.azure_live.round import Round

SWITCH = "AMLTRAIN_AZURE_LIVE"
SIZE = "Standard_DS11_v2"


def main(argv: list[str]) -> int:
    """Everything; 0 when all that was checked holds, 3 when something does not."""
    chosen = _parser().parse_args(argv)
    if os.environ.get(SWITCH) != "1":
        print(f"make azure-live: it costs money. To confirm, set {SWITCH}=1 in the environment.", file=sys.stderr)
        return 2
    try:
        where = _where(chosen)
    except (OSError, ValueError, KeyError) as error:
        print(f"make azure-live: {error}. Give --subscription, --resource-group and --workspace.", file=sys.stderr)
        return 2
    print(_plan(chosen, where))
    if not chosen.yes and not _agreed():
        return 1
    with tempfile.TemporaryDirectory(prefix="amltrain-live-") as folder:
        live = Round(chosen, where, Path(folder))
        try:
            live.go()
        except KeyboardInterrupt:
            print("\nInterrupted: deleting what was created. Please wait.", flush=True)
            live.broken = "interrupted"
        except Exception as error:
            live.broken = f"{type(error).__name__}: {error}"
            print(f"\nThe checks ended early: {live.broken}", flush=True)
        finally:
            live.clean()
        return tell(live, Path(chosen.json))


def _agreed() -> bool:
    try:
        return input("Continue? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # nobody is there: --yes says so
        return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make azure-live", description=(azure_live.__doc__ or "").split("\n")[0])
    parser.add_argument("--config", help="config.json of the workspace (default: the one in this folder, if any)")
    for name in ("subscription", "resource-group", "workspace", "tenant"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--method", default="auto", choices=("auto", "browser", "device"), help="how to sign in")
    parser.add_argument("--size", default=SIZE, help=f"size of the machine (default {SIZE})")
    parser.add_argument("--serverless", action="store_true", help="create no cluster; the service finds a machine")
    parser.add_argument("--dedicated", action="store_true", help="use dedicated machines")
    parser.add_argument("--environment", default="", help="environment of the jobs (default: that of a normal job)")
    parser.add_argument("--seconds", type=float, default=150.0, help="run time of the long job in seconds")
    parser.add_argument("--limit", type=float, default=60.0, help="time limit of one job in seconds")
    parser.add_argument("--no-instance", action="store_true", help="create no compute instance, and skip its checks")
    parser.add_argument("--json", default="azure-live.json", help="file for the results")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    return parser


def _where(chosen: argparse.Namespace) -> dict[str, str]:
    """Subscription, group and workspace, of the flags or of a config.json."""
    found = {"subscription": chosen.subscription, "resource_group": chosen.resource_group}
    found["workspace"] = chosen.workspace
    if not all(found.values()):
        facts = json.loads(Path(chosen.config or "config.json").read_text(encoding="utf-8"))
        names = {"subscription": "subscription_id", "resource_group": "resource_group", "workspace": "workspace_name"}
        found = {name: found[name] or str(facts[theirs]) for name, theirs in names.items()}
    return found | ({"tenant": chosen.tenant} if chosen.tenant else {})


def _plan(chosen: argparse.Namespace, where: dict[str, str]) -> str:
    machine = "a machine that the service finds" if chosen.serverless else "a cluster of 0 to 1 machines"
    tier = "dedicated" if chosen.dedicated else "low-priority"
    instance = (
        "" if chosen.no_instance else f"  create a compute instance of {chosen.size}, stop it and start it again\n"
    )
    return (
        f"In the workspace {where['workspace']} (resource group {where['resource_group']}) the command will:\n"
        "  read sizes, quota, permissions and storage (without changes)\n"
        f"  create {machine} of {chosen.size}, {tier}\n"
        f"  run a job of {chosen.seconds:.0f} s, one that fails at once, one that is canceled\n"
        f"  run a job of 10 minutes with a time limit of {chosen.limit:.0f} s\n"
        f"{instance}"
        "  log to the first job's run until the service rejects a request, and register a model of the run\n"
        f"  delete the cluster{' and the instance' if instance else ''}, delete the model, archive the jobs\n"
        f"This takes about {'25' if instance else '15'} minutes and costs less than 1 USD (machines of 2 cores for some"
        " minutes; its storage,\nkilobytes of logs and code, stays in the workspace)."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
