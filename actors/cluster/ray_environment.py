"""How Ray is started here: variables that must be set before ``import ray``, arguments of ``ray.init``, folders.

Left alone, Ray's listeners bind to all interfaces, and whoever reaches one runs code here: an embedded Ray gets the
loopback address only, and token authentication is never optional. The cluster is started with the data folder as
current folder: Ray puts the driver's current folder first on every worker's path, and a user's own ``storage`` package
there would hide ours.
"""

import contextlib
import functools
import importlib
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors.cluster.errors import CannotStart, NotServed
from actors.cluster.placement import NAMESPACE

OBJECT_STORE_BYTES = 80 * 1024 * 1024  # nothing of ours goes there; 75 MiB is the least that Ray takes
_LONGEST_TEMP = 24  # Ray's sockets lie ~80 characters deeper and must stay below 108


def common_variables() -> dict[str, str]:
    """What every process that joins a cluster of ours sets, unless the user has set it already."""
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run` Ray would ship the current folder to the workers
    }


def embedded_variables(token_file: Path) -> dict[str, str]:
    """For the process that starts a local Ray; the daemons and workers inherit them."""
    return {
        **common_variables(),
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "RAY_worker_niceness": "0",  # 15 by default: conversations would lose to every other process
        # By its name for other systems; it makes Ray use and listen on the loopback address alone. Arguments of ray.init
        # do not: an address that is given is replaced by the machine's, which may also change while it runs.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_raylet_death_check_interval_milliseconds": "250",
    }


def write_variables_for_drivers(data: Path, address: str) -> None:
    """DATA/ray.env: what another program of this user needs in its environment for ``ray.init()`` to join this Ray."""
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
    lines = [f"RAY_ADDRESS={address}", *(f"{name}={os.environ[name]}" for name in names if name in os.environ)]
    (data / "ray.env").write_text("\n".join(lines) + "\n")


def read_variables_for_drivers(data: Path) -> None:
    """Take over what `write_variables_for_drivers` has written, whether Ray was imported before or not.

    Raises `NotServed`; also when this program is connected to another Ray than that of this folder.
    """
    try:
        lines = (data / "ray.env").read_text().splitlines()
    except OSError as exc:
        raise NotServed(
            f"No server of this machine runs on the data folder {data}: there is no ray.env in it."
        ) from exc
    variables = dict(line.split("=", 1) for line in lines if "=" in line)
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        _require_connected_to(variables.get("RAY_ADDRESS", ""), data)
        return
    os.environ.update(variables)
    if ray is not None:
        _tell_imported_ray(data)


def _require_connected_to(address: str, data: Path) -> None:
    ray = importlib.import_module("ray")
    connected = getattr(ray.get_runtime_context(), "gcs_address", None)  # a Ray client has none
    if connected != address:
        raise NotServed(
            f"This program is connected to another Ray than that of {data}, which is at {address}: "
            "call ray.shutdown() first, or leave out data=."
        )


def _tell_imported_ray(data: Path) -> None:
    """Let Ray read again what it has read when it was imported.

    Otherwise it would look for the cluster at this machine's address instead of the loopback one, and without the token.
    """
    try:
        constants: Any = importlib.import_module("ray._private.ray_constants")
        core: Any = importlib.import_module("ray._raylet")
        has_address = constants.env_bool(constants.ENABLE_RAY_CLUSTERS_ENV_VAR, constants.ENABLE_RAY_CLUSTER)
        core.Config.initialize("")
        core.AuthenticationTokenLoader.instance().reset_cache()
    except (ImportError, AttributeError) as exc:  # a Ray that is built differently
        raise NotServed(
            f"Ray was imported before, with other settings than those of {data}: call connect before anything imports Ray, "
            f"or start this program with the variables of {data / 'ray.env'}."
        ) from exc
    constants.ENABLE_RAY_CLUSTER = has_address


def address_to_join() -> str:
    """The one that the user's environment names. Raises `NotServed`, and needs no Ray."""
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        raise NotServed(
            "Ray is not connected: call ray.init() first, or name the data folder of a server on this machine, as in "
            'connect("conversation", "alice", data="perdure-data").'
        )
    return address


def set_variables(variables: dict[str, str]) -> None:
    """Call before ``import ray``, which reads some of them; the rest is read by the processes that Ray starts."""
    os.environ["RAY_AUTH_MODE"] = "token"  # whatever the user has set
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def package_root() -> Path:
    return Path(__file__).resolve().parents[2]


def make_packages_importable() -> None:
    """Let the workers import ``actors``, ``storage`` and ``compaction`` also from a checkout that is not installed."""
    root = package_root()
    if {"site-packages", "dist-packages"} & set(root.parts):
        return
    others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and Path(p) != root]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root), *others])


def private_folder(path: Path) -> Path:
    """Make it with mode 0700 (parents too); an existing one stays as it is. `CannotStart` with one sentence."""
    try:
        for folder in reversed([path, *path.parents]):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as exc:
        raise CannotStart(f"The folder {path} cannot be made: {exc.strerror}.") from exc
    if not path.is_dir():
        raise CannotStart(f"{path} is not a folder.")
    if not os.access(path, os.W_OK | os.X_OK):
        raise CannotStart(f"The folder {path} cannot be written.")
    return path


def token_file(data: Path) -> Path:
    """The secret of this data folder's Ray: a file of mode 0600, made once."""
    path = data / "ray-token"
    if not path.exists():
        fd, name = tempfile.mkstemp(dir=data, prefix=".ray-token-")  # mkstemp makes it 0600
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_hex(32))
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
        os.unlink(name)
    return path


def temp_root() -> Path:
    """A short folder of this user alone. Ray makes everything below it world-writable, and the folder it is given too."""
    base = Path(tempfile.gettempdir())
    if len(str(base)) > _LONGEST_TEMP:
        base = Path("/tmp")
    path = base / f"perdure-{os.getuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
    except OSError as exc:
        raise CannotStart(f"The folder {path} for Ray's sockets cannot be made: {exc.strerror}.") from exc
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return _inner(path)
    # Somebody else's: take one that nobody can foresee.
    return _inner(Path(tempfile.mkdtemp(prefix="perdure-", dir=base)))


def _inner(private: Path) -> Path:
    inner = private / "r"
    inner.mkdir(exist_ok=True)
    return inner


def remove_dead_sessions(root: Path) -> None:
    """Remove session folders whose driver is gone (the name ends with its process id)."""
    for session in root.glob("session_*_*_*"):
        pid = session.name.rpartition("_")[2]
        if session.is_symlink() or not pid.isdigit() or _is_alive(int(pid)):
            continue
        shutil.rmtree(session, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def embedded_arguments(root: Path) -> dict[str, Any]:
    """Arguments of ``ray.init`` for a Ray of our own on this machine."""
    return {
        "address": "local",  # never join a Ray that happens to run here
        "namespace": NAMESPACE,
        "num_cpus": max(1, os.cpu_count() or 1),
        "include_dashboard": False,
        "log_to_driver": False,
        "configure_logging": False,
        "logging_level": "ERROR",
        "object_store_memory": OBJECT_STORE_BYTES,
        "_temp_dir": str(root),
    }


@contextlib.contextmanager
def without_helpers() -> Iterator[None]:
    """Around ``ray.init``: no autoscaler and no log forwarder, two processes of 60 MB that take a second to start.

    ``ray.init`` has no arguments for it, but what it calls has. Without effect where Ray is built differently.
    """
    try:
        parameter: Any = importlib.import_module("ray._private.parameter")
        original = parameter.RayParams
    except (ImportError, AttributeError):
        yield
        return
    parameter.RayParams = functools.partial(original, no_monitor=True, include_log_monitor=False)
    try:
        yield
    finally:
        parameter.RayParams = original


def joining_arguments(address: str) -> dict[str, Any]:
    """Arguments of ``ray.init`` for a cluster that somebody else started."""
    return {
        "address": address,
        "namespace": NAMESPACE,
        "log_to_driver": False,
        "configure_logging": False,
        "logging_level": "ERROR",
    }
