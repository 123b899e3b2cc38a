"""A Slurm cluster of one node for tests: private configuration, free ports, the processes of the current user."""

import contextlib
import getpass
import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort={controller_port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2
ReturnToService=2
KillWait=30
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 CoresPerSocket=2 RealMemory=1000 State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def missing_programs():
    return [name for name in PROGRAMS if not shutil.which(name, path=_path())]


def _path():
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


@contextlib.contextmanager
def running_cluster():
    """Start munged, slurmctld and slurmd. Yields the environment of commands. Raises RuntimeError with the reason."""
    with contextlib.ExitStack() as at_exit:
        # the path of a socket is limited to 107 bytes
        folder = Path(at_exit.enter_context(tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True)))
        folder.chmod(0o755)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(1024))
        environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(folder / "slurm.conf")}
        values = {
            "folder": folder, "user": getpass.getuser(), "host": socket.gethostname().split(".")[0],
            "controller_port": _free_port(), "node_port": _free_port(),
        }  # fmt: skip
        (folder / "slurm.conf").write_text(CONFIGURATION.format(**values))
        (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        commands = (
            ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge],
            ["slurmctld", "-D"],
            ["slurmd", "-D"],
        )
        for command in commands:
            _start(command, folder, environment, at_exit)
            if command[0] == "munged":
                _wait(lambda: (folder / "munge.socket").exists(), "munged has no socket", folder)
        _wait(lambda: _is_idle(environment), "the node is not idle", folder)
        at_exit.callback(_cancel_all, environment)
        yield environment


def _free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def _start(command, folder, environment, at_exit):
    log = at_exit.enter_context(open(folder / f"{command[0]}.output", "wb"))
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    def end():
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    at_exit.callback(end)


def _wait(condition, problem, folder, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            texts = [path.read_text(errors="replace")[-1000:] for path in sorted(folder.glob("*.[lo][ou][gt]*"))]
            raise RuntimeError(f"{problem}: {' '.join(texts)}")
        time.sleep(0.2)


def _is_idle(environment):
    done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True)
    return re.fullmatch(r"idle\s*", done.stdout) is not None


def _cancel_all(environment):
    """A job must not outlive the cluster."""
    subprocess.run(["scancel", "--me", "--signal=KILL", "--full"], env=environment, capture_output=True)
    subprocess.run(["scancel", "--me"], env=environment, capture_output=True)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        listed = subprocess.run(["squeue", "--me", "-h"], env=environment, capture_output=True, text=True)
        if not listed.stdout.strip():
            return
        time.sleep(0.2)
