"""Command that starts the processes of a job, by the framework's own launcher; and how they ended.

The launcher starts ``amltrain_rank.py`` (:mod:`.rank`) for each process. What a script finds in its environment is
what the launcher sets, on this machine as at a service.
"""

from __future__ import annotations

import ipaddress
import json
import os
import pkgutil
import shlex
import shutil
import socket
import struct
import subprocess
import zlib
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..processes import signal_name
from ..protocol import AgentError
from . import mpi_daemons

Json = Dict[str, Any]
#: Kinds of jobs. DeepSpeed's are started by torchrun, as services do: its own launcher starts other machines by
#: pdsh, and reads numbers from ``CUDA_VISIBLE_DEVICES``.
PYTORCH, DEEPSPEED, MPI, HOROVOD, TENSORFLOW, RAY = "pytorch", "deepspeed", "mpi", "horovod", "tensorflow", "ray"
KINDS = (PYTORCH, DEEPSPEED, MPI, HOROVOD, TENSORFLOW, RAY)
#: Folder of a run with a record for each process, and the output of the launcher itself.
RANKS, LAUNCHER_LOG = "ranks", "log/launcher.txt"
#: Files of a run on several machines: the workers of TensorFlow have ended on this one, and on all of them.
WORKERS_DONE, SERVERS_END = "ranks/workers-done", "ranks/servers-end"
MAX_PROCESSES = 512
#: Request for the address of a network interface (Linux, netdevice(7)).
_SIOCGIFADDR = 0x8915
_PACKAGE = __name__.rpartition(".distributed")[0]
#: Files for the machine, and their sources; the first one is written last.
_FILES = {
    "amltrain_rank.py": "distributed/rank.py",
    "amltrain_workers.py": "distributed/workers.py",
    "amltrain_ray.py": "distributed/ray_cluster.py",
    "amltrain_mpi.py": "distributed/mpi_daemons.py",
    "amltrain_identity.py": "azure/identity.py",
}
_FIELDS = {"kind": str, "processes": int, "servers": int, "restarts": int, "python": str}
#: Seconds for a program to print its version.
_VERSION_TIMEOUT_S = 10.0
#: Module that a launcher is a part of, the package that has it, and its name.
_MODULES = {
    PYTORCH: ("torch", "torch", "PyTorch"),
    DEEPSPEED: ("torch", "torch deepspeed", "PyTorch"),
    RAY: ("ray", "ray", "Ray"),
}
#: Order of the ranks: one machine after the other.
_BY_SLOT = ("--map-by", "slot")
#: Options of mpirun that Horovod's documentation gives for Open MPI
#: (https://horovod.readthedocs.io/en/stable/mpi.html), besides the order of the ranks.
_HOROVOD_OPTIONS = ("--mca", "pml", "ob1", "--mca", "btl", "^openib")
#: Parameters of Open MPI 4 and 5 by which it starts daemons on other machines with our program (``%s``), all of them
#: from node 0, and stays connected with them.
_MPI_PARAMETERS = {
    "OMPI_MCA_plm": "rsh",
    "OMPI_MCA_plm_rsh_agent": "%s",
    "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
    "OMPI_MCA_orte_leave_session_attached": "1",
    "PRTE_MCA_plm": "ssh",
    "PRTE_MCA_plm_ssh_agent": "%s",
    "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    "PRTE_MCA_prte_leave_session_attached": "1",
}
#: Networks with fewer bits have addresses that other machines may have too.
_MIN_NETWORK_BITS = 8
#: Variables that allow mpirun to root, in Open MPI 4 and 5.
_MPI_AS_ROOT = (
    *("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"),
    *("PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"),
)


class RankFailure(NamedTuple):
    """The process that failed first."""

    rank: int
    exit_code: Optional[int]
    signal: Optional[int]
    ended: float = 0.0  #: Unix seconds; 0 without a record of the end
    is_own: bool = True  #: it failed by itself: nobody had asked it to end

    @property
    def text(self) -> str:
        """What happened, for the state of the run."""
        if self.signal is not None:
            return "rank %d was killed by %s" % (self.rank, signal_name(self.signal))
        if self.exit_code is None:
            return "rank %d ended without a record, as if it was killed" % self.rank
        return "rank %d exited with code %d" % (self.rank, self.exit_code)


class NoLauncher(Exception):
    """The program that starts the processes is absent; the message is shown to the user."""


def check(ranks: Mapping[str, Any]) -> Json:
    """Return the description of a job's processes with all its fields.

    Fields: ``kind``, ``processes`` on this machine (0 for one for each GPU), ``servers`` (parameter servers of
    TensorFlow), ``restarts`` (of all processes, after one has failed), ``python`` (interpreter of the launcher).

    Raises
    ------
    AgentError
        ``SubmitError`` that names the field.
    """
    found = {name: ranks.get(name, kind()) for name, kind in _FIELDS.items()}
    for name, value in found.items():
        if type(value) is not _FIELDS[name] or (isinstance(value, int) and not 0 <= value <= MAX_PROCESSES):
            raise AgentError("SubmitError", "Cannot submit the job: ranks.%s is not valid." % name)
    if set(ranks) - set(_FIELDS) or found["kind"] not in KINDS or not found["python"]:
        raise AgentError("SubmitError", "Cannot submit the job: its launcher %r is not known." % found["kind"])
    return found


def count(ranks: Mapping[str, Any], devices: Sequence[str]) -> int:
    """Return the number of processes of a job, on all its machines; Ray's tasks are no processes of the job."""
    if ranks.get("kind") == RAY:
        return 1
    gang = ranks.get("gang")
    if gang:
        return int(sum(gang["processes"]) + sum(gang["servers"]))
    return workers_here(ranks, devices) + int(ranks["servers"])


def workers_here(ranks: Mapping[str, Any], devices: Sequence[str]) -> int:
    """Return the number of processes of a job on this machine, without parameter servers."""
    return int(ranks["processes"] or len(devices) or 1)


def servers_here(ranks: Mapping[str, Any], node: int, nodes: int) -> int:
    """Return the number of parameter servers on a machine; they are dealt out one by one."""
    return len(range(node, int(ranks["servers"]), nodes))


def command(
    ranks: Json, argv: Sequence[str], devices: Sequence[str], env: Dict[str, str], folder: str, home: str, cwd: str
) -> List[str]:
    """Return the launcher's command; `env` gets what the launcher needs, `ranks` the path of its interpreter.

    Parameters
    ----------
    argv
        Program and arguments of each process.
    folder
        The run folder, which gets the records.
    home
        Folder for the files on this machine.
    cwd
        Working folder of the processes.

    Raises
    ------
    NoLauncher
        The launcher is absent.
    OSError
        The files cannot be written.
    """
    files, workers, gang = _written(home), workers_here(ranks, devices), ranks.get("gang")
    python = ranks["python"] = shutil.which(ranks["python"], path=env.get("PATH")) or ranks["python"]
    os.makedirs(os.path.join(folder, RANKS), mode=0o700, exist_ok=True)
    # Neither the site packages nor PYTHON* variables: this process is to start fast, and unlike the job's.
    each = [python, "-S", "-E", os.path.join(files, "amltrain_rank.py"), folder, *argv]
    if ranks["kind"] == TENSORFLOW:
        program = os.path.join(files, "amltrain_workers.py")
        cluster = json.dumps(_cluster(gang, folder)) if gang else ""
        return [python, "-S", "-E", program, str(workers), str(ranks["servers"]), cluster, *each]
    if ranks["kind"] == RAY:
        cpus = str(ranks["processes"] or os.cpu_count() or 1)
        return [python, os.path.join(files, "amltrain_ray.py"), cpus, str(len(devices)), *each]
    if gang:
        # Without it gloo takes the address of the machine's own name, on many machines 127.0.1.1.
        interface = interface_of(gang["addresses"][gang["node"]])
        if interface:
            env.setdefault("GLOO_SOCKET_IFNAME", interface)
    if ranks["kind"] in (MPI, HOROVOD):
        if gang:
            return _mpi_of_nodes(ranks, each, env, folder, files, cwd)
        return _mpi_here(ranks, workers, each, env)
    env["NODE_RANK"] = str(gang["node"]) if gang else "0"  # as at a service; torchrun sets GROUP_RANK
    return [
        *(python, "-m", "torch.distributed.run", *_torch_meeting(gang), "--nproc-per-node", str(workers)),
        *("--rdzv-id", os.path.basename(folder), "--max-restarts", str(ranks["restarts"])),
        *("--log-dir", os.path.join(folder, RANKS), "--no-python", *each),
    ]


def _torch_meeting(gang: Optional[Mapping[str, Any]]) -> List[str]:
    """Return the arguments by which the torchruns of a run find each other."""
    if not gang:  # a free port of this machine, and an address that needs no resolver
        meeting = ["--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
        return [*meeting, "--local-addr", "127.0.0.1"]
    return [
        *("--nnodes", str(len(gang["processes"])), "--node-rank", str(gang["node"])),
        *("--master-addr", gang["address"], "--master-port", str(gang["port"])),
        *("--local-addr", gang["addresses"][gang["node"]]),
    ]


def interface_of(address: str) -> str:
    """Return the name of the network interface that has an address; empty if it is not known."""
    import fcntl

    for _, name in socket.if_nameindex():
        request = struct.pack("256s", name.encode()[:15])
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24]
        except OSError:  # it has no such address, or the system has another call
            continue
        if socket.inet_ntoa(found) == address:
            return name
    return ""


def _cluster(gang: Json, folder: str) -> Json:
    """Return the addresses of a TensorFlow cluster on several machines, and the tasks and files of this one."""
    here, hosts, counts = gang["node"], gang["hosts"], gang["processes"]
    workers = [(node, address) for node, count in enumerate(counts) for address in hosts[node][:count]]
    # Dealt out one by one, as `servers_here` counts them.
    dealt = [(number % len(hosts), number // len(hosts)) for number in range(sum(gang["servers"]))]
    servers = [(node, hosts[node][counts[node] + at]) for node, at in dealt]
    both = {kind: tasks for kind, tasks in (("worker", workers), ("ps", servers)) if tasks}
    return {
        "cluster": {kind: [address for _, address in tasks] for kind, tasks in both.items()},
        "tasks": [[kind, i] for kind, tasks in both.items() for i, (node, _) in enumerate(tasks) if node == here],
        "workers_done": os.path.join(folder, WORKERS_DONE),
        "servers_end": os.path.join(folder, SERVERS_END),
    }


def _mpirun(env: Dict[str, str]) -> str:
    """Return the path of mpirun."""
    program = shutil.which("mpirun", path=env.get("PATH"))
    if program is None:
        raise NoLauncher(
            "mpirun was not found on the PATH. Install Open MPI: sudo apt-get install openmpi-bin,"
            " or conda install -c conda-forge openmpi"
        )
    return program


def has_open_mpi(env: Mapping[str, str]) -> bool:
    """Whether the mpirun on the PATH is that of Open MPI."""
    program = shutil.which("mpirun", path=env.get("PATH"))
    return program is not None and _is_open_mpi(program, env)


def _is_open_mpi(program: str, env: Mapping[str, str]) -> bool:
    """Whether a mpirun is that of Open MPI; Intel MPI and MPICH share the options of Hydra."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, timeout=_VERSION_TIMEOUT_S, env=env)
    except (OSError, subprocess.SubprocessError):
        return False
    return b"open" in done.stdout.lower()


def _prepare_open_mpi(ranks: Mapping[str, Any], env: Dict[str, str]) -> List[str]:
    """Return options of Open MPI for all jobs of a kind; `env` gets what allows mpirun to root."""
    if os.getuid() == 0:  # a container, where root is the only user
        for name in _MPI_AS_ROOT:
            env.setdefault(name, "1")
    return ["--bind-to", "none", *(_HOROVOD_OPTIONS if ranks["kind"] == HOROVOD else ())]


def _mpi_here(ranks: Mapping[str, Any], workers: int, each: Sequence[str], env: Dict[str, str]) -> List[str]:
    """Return the command of processes that are all on this machine."""
    command = [_mpirun(env), "-n", str(workers)]
    if _is_open_mpi(command[0], env):
        order = _BY_SLOT if ranks["kind"] == HOROVOD else ()
        command += ["--oversubscribe", *order, *_prepare_open_mpi(ranks, env)]
    return [*command, *each]


def _mpi_of_nodes(
    ranks: Mapping[str, Any], each: Sequence[str], env: Dict[str, str], folder: str, files: str, cwd: str
) -> List[str]:
    """Return the command of this node for processes on several machines: mpirun on the first one.

    ``gang`` has an ``attempt`` where the nodes have one run folder, and a ``launcher`` where one other than mpirun
    starts the processes of all nodes.

    Raises
    ------
    NoLauncher
        There is no Open MPI, or mpirun cannot take a path as it is.
    """
    gang = ranks["gang"]
    script = [ranks["python"], "-S", "-E", os.path.join(files, "amltrain_mpi.py")]
    attempt, all_nodes = gang.get("attempt", ""), gang.get("launcher")
    if all_nodes and gang["node"]:
        return [*script, "serve", folder, attempt, str(gang["node"])]
    if all_nodes:
        return [*script, "lead", folder, attempt, str(len(gang["processes"])), *all_nodes, *each]
    program = _mpirun(env)
    if not _is_open_mpi(program, env):
        raise NoLauncher("mpirun on several machines needs Open MPI, and %s is another one" % program)
    env[mpi_daemons.EACH] = "cd %s && exec %s" % (shlex.quote(cwd), " ".join(map(shlex.quote, each)))
    if gang["node"]:
        if not any(shutil.which(name, path=env.get("PATH")) for name in mpi_daemons.PROGRAMS):
            raise NoLauncher("orted, the daemon of Open MPI, was not found on the PATH beside mpirun")
        return [*script, "serve", folder, *([attempt, str(gang["node"])] if attempt else ())]
    agent = [*script, "leave", folder, attempt] if attempt else [*script, "start", folder]
    if spaced := next((word for word in agent if " " in word), None):
        raise NoLauncher("mpirun on several machines cannot have a space in a path: %s" % spaced)
    for name, value in _MPI_PARAMETERS.items():
        env[name] = value.replace("%s", " ".join(agent))
    if network := _network_of(gang["addresses"]):
        env.setdefault("OMPI_MCA_btl_tcp_if_include", network)
    counts = gang["processes"]
    hosts = ["localhost:%d" % counts[0]]
    hosts += ["%s:%d" % (mpi_daemons.HOST % (i + 1), number) for i, number in enumerate(counts[1:])]
    shell = ["/bin/sh", "-c", 'eval "$%s"' % mpi_daemons.EACH]
    options = ["-n", str(sum(counts)), "--host", ",".join(hosts), *_BY_SLOT, "--wdir", "/"]
    return [program, *options, *_prepare_open_mpi(ranks, env), *shell]


def _network_of(addresses: Sequence[str]) -> str:
    """Return the smallest network with the addresses of all machines, for Open MPI; empty if it does not help.

    Without it Open MPI also tries the networks of each machine's own containers, where it waits for an answer.
    """
    try:
        numbers = {int(ipaddress.IPv4Address(address)) for address in addresses}
    except ValueError:
        return ""
    bits = 32 - (min(numbers) ^ max(numbers)).bit_length()
    if len(numbers) < 2 or bits < _MIN_NETWORK_BITS:
        return ""
    return str(ipaddress.IPv4Network((min(numbers), bits), strict=False))


def missing(ranks: Mapping[str, Any]) -> str:
    """Return why the launcher could not start any process; empty if that is not known. Starts the interpreter."""
    if ranks["kind"] not in _MODULES:
        return ""
    module, package, name = _MODULES[ranks["kind"]]
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec(%r) is None)" % module
    try:
        done = subprocess.run([ranks["python"], "-c", find], capture_output=True, timeout=_VERSION_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    if done.returncode != 1:
        return ""
    return "%s is not installed for %s. Install it: pip install %s, or name it in --env" % (
        name, ranks["python"], package,
    )  # fmt: skip


def first_failure(folder: str) -> Optional[RankFailure]:
    """Return the process that failed first; ``None`` if no record shows a failure.

    Processes that the launcher ended after a failure are no failures of their own.
    """
    rows = records(folder)
    last = max((row["attempt"] for row in rows), default=0)
    rows = [row for row in rows if row["attempt"] == last]
    ended = [row for row in rows if row.get("ended") and (row.get("exit_code") or row.get("signal"))]
    own = sorted((row for row in ended if not row["ended_by"]), key=lambda row: row["ended"])
    if not own:  # killed together with the process that writes the record
        own = [row for row in rows if not row.get("ended")]
    if not own:
        own = sorted(ended, key=lambda row: row["ended"])
    if not own:
        return None
    first = own[0]
    is_own = not first["ended_by"]
    return RankFailure(first["rank"], first.get("exit_code"), first.get("signal"), first.get("ended") or 0.0, is_own)


def records(folder: str) -> List[Json]:
    """Return the records of the processes that have started; a job may have damaged them."""
    found = []
    try:
        names = os.listdir(os.path.join(folder, RANKS))
    except OSError:
        return []
    for name in names:
        if not name.endswith(".json"):
            continue
        try:
            with open(os.path.join(folder, RANKS, name)) as file:
                row = json.load(file)
            numbers = row["rank"], row["attempt"], row.get("ended") or 0, row.get("exit_code") or 0
            if all(isinstance(number, (int, float)) for number in (*numbers, row.get("signal") or 0)):
                found.append(dict(row, ended_by=str(row.get("ended_by") or "")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def _written(home: str) -> str:
    """Return the folder with the files of this version; write them if they are absent."""
    data = {name: pkgutil.get_data(_PACKAGE, source) or b"" for name, source in _FILES.items()}
    folder = os.path.join(os.path.abspath(home), "rank-%08x" % zlib.crc32(b"".join(data.values())))
    if os.path.exists(os.path.join(folder, "amltrain_rank.py")):
        return folder
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for name in reversed(list(data)):
        part = os.path.join(folder, "%s.%d.part" % (name, os.getpid()))
        with open(part, "wb") as file:
            file.write(data[name])
        os.replace(part, os.path.join(folder, name))  # another job may be reading the same file
    return folder
