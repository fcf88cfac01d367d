"""A real Slurm cluster of two nodes on loopback: for the tests, notebook 10, and ``make slurm-sandbox``.

``python -m tools.slurm_cluster`` starts one as root and says how to attach it; Ctrl-C ends it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools import system_packages
from tools.environment import say
from tools.openssh import free_port

#: Folders that are often outside of a user's PATH.
_FOLDERS = ("/usr/bin", "/usr/sbin", "/sbin")
_PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue")
#: Seconds for the daemons to be ready.
_START_TIMEOUT_S = 60.0
NODES = ("n1", "n2")
GPUS_OF_NODE = 2

#: ``{}`` are filled in by :meth:`Cluster._write`. Without ``NoInAddrAny`` the daemons listen on all addresses;
#: ``jobacct_gather/linux`` makes ``slurmstepd`` crash in a container without control groups. Steps with PMIx
#: have folders of the same name on both nodes, below TmpFS.
_CONF = """ClusterName=sandbox
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort={port}
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
StateSaveLocation={folder}/spool/ctld
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin={task_plugin}
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
SlurmdParameters=config_overrides
SlurmdTimeout=300
ReturnToService=2
KillWait=5
MinJobAge={min_job_age}
GresTypes=gpu
MailProg=/bin/true
{nodes}
PartitionName=main Nodes=n1,n2 Default=YES DefaultTime=0:30:00 MaxTime=1:00:00 State=UP
PartitionName=single Nodes=n1 MaxNodes=1 MaxTime=0:10:00 State=UP
PartitionName=closed Nodes=n2 MaxTime=1:00:00 State=DOWN
"""


def find(name: str) -> str | None:
    """Path of a program of Slurm on this machine, or None."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *_FOLDERS)))


def missing_reason() -> str:
    """Why no cluster can be started here; empty if one can."""
    if absent := [name for name in _PROGRAMS if find(name) is None]:
        return f"no Slurm on this machine ({absent[0]} is absent): apt install slurmctld slurmd munge slurm-client"
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "needs root: a cluster of two nodes"
    return "" if _can_make_devices() else "needs the right to make device files: GPUs are pretended"


def _can_make_devices() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.mknod(os.path.join(folder, "device"), 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        except OSError:
            return False
    return True


def can_limit() -> bool:
    """Whether control groups of version 1 limit memory on this machine."""
    folder = Path("/sys/fs/cgroup/memory") / f"amltrain-{os.getpid()}"
    try:
        folder.mkdir()
        folder.rmdir()
    except OSError:
        return False
    return True


def ensure() -> None:
    """Install it when we may; otherwise say in one sentence that the tests of Slurm are skipped."""
    if missing_reason():
        system_packages.install("Slurm", "--no-install-recommends", "slurmctld", "slurmd", "munge", "slurm-client")
    if reason := missing_reason():
        say(f"the tests of Slurm are skipped: {reason}")


class Cluster:
    """A controller and two nodes with two CPUs and two pretended GPUs each, in `folder`.

    Parameters
    ----------
    min_job_age
        Seconds for which ``squeue`` knows an ended job.
    cpus
        Processors of each node.
    limits_memory
        Whether a job is killed that needs more memory than it was given: by control groups, see :func:`can_limit`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        min_job_age: int = 300,
        cpus: int = 4,
        limits_memory: bool = False,
    ) -> None:
        self.folder, self.cpus, self._limits_memory = folder, cpus, limits_memory
        plugin = "task/cgroup" if limits_memory else "task/none"
        self._settings = {"min_job_age": min_job_age, "task_plugin": plugin}
        for name in (
            "run",
            "spool/ctld",
            "log",
            "gpu",
            *(f"{part}/{node}" for part in ("spool", "tmp") for node in NODES),
        ):
            (folder / name).mkdir(mode=0o755, parents=True, exist_ok=True)
        self._write()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._start_munge()
            self.start_controller()
            for node in NODES:
                self.start_node(node)
            self._wait("sinfo", lambda: len(self._ready()) == len(NODES))
        except BaseException:
            self.stop()
            raise

    @property
    def conf(self) -> Path:
        """The configuration file, for ``SLURM_CONF``."""
        return self.folder / "slurm.conf"

    @property
    def environ(self) -> dict[str, str]:
        """Variables with which the commands of Slurm find this cluster."""
        return {"SLURM_CONF": str(self.conf)}

    def _write(self) -> None:
        host, folder = socket.gethostname().partition(".")[0], self.folder
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs={self.cpus}"
            f" RealMemory=4000 Gres=gpu:{GPUS_OF_NODE} Feature={'old' if node == 'n1' else 'new'} State=UNKNOWN"
            for node in NODES
        )
        self.conf.write_text(_CONF.format(host=host, folder=folder, port=free_port(), nodes=nodes, **self._settings))
        memory = "CgroupMountpoint=/sys/fs/cgroup\nConstrainRAMSpace=yes\n" if self._limits_memory else ""
        (folder / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v1\nConstrainDevices=no\n{memory}")
        lines = []
        for number, node in enumerate(NODES):
            first = number * GPUS_OF_NODE
            lines.append(f"NodeName={node} Name=gpu File={folder}/gpu/dev[{first}-{first + GPUS_OF_NODE - 1}]\n")
            for device in range(first, first + GPUS_OF_NODE):
                with contextlib.suppress(FileExistsError):
                    os.mknod(folder / "gpu" / f"dev{device}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (folder / "gres.conf").write_text("".join(lines))

    def _start(self, name: str, *argv: str) -> None:
        program = find(argv[0])
        assert program is not None
        # Tests end all processes that have the state root of a test in their environment.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("AMLTRAIN_")}
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [program, *argv[1:]],
                env={**environ, **self.environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _start_munge(self) -> None:
        run, key = self.folder / "run", self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self._start(
            *("munged", "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={run}/munge.sock"),
            *(f"--pid-file={run}/munged.pid", f"--log-file={self.folder}/log/munged.log"),
            *(f"--seed-file={run}/munge.seed", "--num-threads=2"),
        )
        self._wait("munged", (run / "munge.sock").exists)

    def start_controller(self) -> None:
        """Start the controller, which knows its jobs again."""
        self._start("slurmctld", "slurmctld", "-D")
        self._wait("slurmctld", lambda: self.command("scontrol", "ping").returncode == 0)

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        self._start(node, "slurmd", "-D", "-N", node)

    def stop_controller(self) -> None:
        """End the controller, which saves what it knows; jobs go on."""
        process = self.processes.pop("slurmctld")
        process.terminate()
        process.wait()

    def kill_node(self, node: str) -> None:
        """Kill the daemon of a node; its jobs go on."""
        process = self.processes.pop(node)
        process.kill()
        process.wait()

    def _ready(self) -> list[str]:
        found = self.command("sinfo", "-h", "-N", "-p", "main", "-o", "%n %t")
        return [line for line in found.stdout.splitlines() if line.split()[-1:] in (["idle"], ["mix"], ["alloc"])]

    def wait_ready(self) -> None:
        """Wait until both nodes take jobs."""
        self._wait("sinfo", lambda: len(self._ready()) == len(NODES))

    def command(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm."""
        return subprocess.run(
            [find(argv[0]) or argv[0], *argv[1:]],
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def jobs(self) -> list[str]:
        """Ids of the jobs that are waiting or running."""
        return self.command("squeue", "-h", "-o", "%i").stdout.split()

    def cancel_all(self) -> None:
        """Cancel all jobs, and wait until none is left."""
        if jobs := self.jobs():
            self.command("scancel", *jobs)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self.jobs() and time.monotonic() < deadline:
            time.sleep(0.1)

    def _wait(self, name: str, is_ready: object) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not is_ready():  # type: ignore[operator]
            process = self.processes.get(name)
            is_dead = process is not None and process.poll() is not None
            if is_dead or time.monotonic() > deadline:
                raise RuntimeError(f"Slurm does not start: {self._logs()}")
            time.sleep(0.05)

    def _logs(self) -> str:
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in sorted(self.folder.glob("log/*"))
        )

    def stop(self) -> None:
        """Cancel the jobs and end the daemons."""
        if "slurmctld" in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.command("scancel", "--signal=KILL", "--full", *self.jobs())
        import psutil

        for name in [*NODES, "slurmctld", "munged"]:
            if process := self.processes.pop(name, None):
                with contextlib.suppress(psutil.Error):
                    for child in psutil.Process(process.pid).children(recursive=True):
                        child.kill()
                process.kill()
                process.wait()
        # The processes that watch over jobs have left their daemon.
        for process in psutil.process_iter(["name", "environ"]):
            if process.info["name"] == "slurmstepd" and (process.info["environ"] or {}).get("SLURM_CONF") == str(
                self.conf
            ):
                with contextlib.suppress(psutil.Error):
                    process.kill()


def main() -> int:
    """Start a sandbox, say how to use it, and wait for Ctrl-C."""
    ensure()
    if missing_reason():
        return 1
    with tempfile.TemporaryDirectory(prefix="amltrain-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        cluster = Cluster(folder)
        print("A Slurm cluster of two nodes to practise on runs on this machine. In a notebook:\n")
        print(f"    %env SLURM_CONF={cluster.conf}")
        print("    %load_ext jupyter_amltrain")
        print(f"    %aml_compute attach cluster --kind slurm --partition main --python {sys.executable}\n")
        print("then add --target cluster to any %%aml_submit; with --nodes 2 a job gets both nodes.")
        print(f"In a terminal: export SLURM_CONF={cluster.conf}; sinfo; squeue")
        print("Ctrl-C ends the cluster and its jobs.", flush=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
        cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
