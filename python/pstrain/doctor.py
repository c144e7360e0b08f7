"""python -m pstrain.doctor [--gpu]: what stands in the way of a job on this machine.

--gpu: also of parameters on a GPU. Prints a line for each thing that it looked at, then what to mend.
Exit code 1 if there is anything. It starts one server and joins it, on the loopback address.
"""
from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import typing
import urllib.parse

from . import __version__, _library, _programs, errors
from ._store import free_port

Result = typing.Tuple[str, str]  # (what was found, what to mend or "")
LEAST_SHM = 64 << 20
ANSWERS_WITHIN_S = 20.0
LEAST_ZMQ = 4, 3
# A worker of a job of its own: a sum, and, with PyTorch, a step whose result is known.
TRIAL = """
import importlib.util, pstrain
with pstrain.init():
    pstrain.barrier()
    if importlib.util.find_spec("torch"):
        import torch
        layer = torch.nn.Linear(8, 2, bias=False)
        torch.nn.init.ones_(layer.weight)
        optimizer = pstrain.Optimizer(layer.named_parameters(), "sgd", lr=0.5)
        layer(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        optimizer.synchronize()
        assert (layer.weight == 0.5).all(), layer.weight
"""


def library() -> Result:
    try:
        found = _library.load()
    except errors.Error as error:
        return "none", str(error)
    version = found.pstrain_version().decode()
    fault = "" if version == __version__ else f"the package is {__version__}: install both together"
    return f"{version}, {found._name}", fault or _old_zmq(found)


def _old_zmq(found: ctypes.CDLL) -> str:
    """Of what the library was linked with, when it is not inside; "": it is new enough."""
    numbers = (ctypes.c_int * 3)()
    if not hasattr(found, "zmq_version"):
        return ""
    found.zmq_version(*(ctypes.byref(numbers, 4 * i) for i in range(3)))
    if tuple(numbers) >= LEAST_ZMQ:
        return ""
    return (f"libzmq {'.'.join(map(str, numbers))} is too old: pstrain needs {'.'.join(map(str, LEAST_ZMQ))} or later "
            "(apt install libzmq5; LD_LIBRARY_PATH may name another one)")


def server() -> Result:
    path = _programs.find("ps-server")
    if path is None:
        return "none", _programs.why_no_server()
    try:  # LD_BIND_NOW: also what it will need later has to be there
        done = subprocess.run([path, "--version"], env=dict(os.environ, LD_BIND_NOW="1"), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=ANSWERS_WITHIN_S)
    except subprocess.TimeoutExpired:
        return path, f"{path} --version has not ended within {ANSWERS_WITHIN_S:g} s: does the disk answer?"
    version = done.stdout.strip()
    if done.returncode != 0:
        return path, (f"{path} does not run: {version}: is a library that it needs missing, too old (libzmq 4.3 or later: apt "
                      "install libzmq5), or hidden by LD_LIBRARY_PATH?")
    fits = version.split()[-1] == __version__
    return f"{version}, {path}", "" if fits else f"{path} is {version}, the package {__version__}"


def pytorch() -> Result:
    if importlib.util.find_spec("torch") is None:
        return "none", "there is no PyTorch for this Python: pip install torch"
    try:
        import torch
        import torch.distributed
    except (ImportError, OSError) as error:
        return "none", f"PyTorch cannot be imported ({error}): install it again, and see whether LD_LIBRARY_PATH hides a library"
    if not torch.distributed.is_available():
        return torch.__version__, "this PyTorch was built without torch.distributed"
    from . import process_group

    process_group.register_backend()
    return f"{torch.__version__}, {torch.get_num_threads()} threads", ""


def environment() -> Result:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PS_INIT_METHOD",
             "PS_PORT", "PS_SERVERS")
    found = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return " ".join(found) or "no variable of a job is set", ""


def coordinator() -> Result:
    """Whether somebody listens where this environment says that server 0 is."""
    method = os.environ.get("PS_INIT_METHOD", "")
    if method.startswith("tcp://"):
        parts = urllib.parse.urlsplit(method)
        host, port = parts.hostname or "", parts.port or 0
    elif "PS_PORT" in os.environ and "MASTER_ADDR" in os.environ:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["PS_PORT"])
    else:
        return "not named (PS_INIT_METHOD, or MASTER_ADDR and PS_PORT)", ""
    try:
        with socket.create_connection((host, port), timeout=5):
            return f"{host}:{port} answers", ""
    except OSError as error:
        return f"{host}:{port}", f"nobody answers at {host}:{port} ({error}): start server 0 there"


def shared_memory() -> Result:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError as error:
        return "none", f"/dev/shm: {error}: tensors will travel over TCP on this host"
    fault = "/dev/shm is almost full: a container needs --shm-size" if free < LEAST_SHM else ""
    return f"{free >> 20} MiB free in /dev/shm", fault


def trial() -> Result:
    """A job of one server and one worker."""
    path = _programs.find("ps-server")
    if path is None or library()[1] or server()[1] or importlib.util.find_spec("torch") and pytorch()[1]:
        return "not made", ""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PS_", "TORCHELASTIC"))}
    env.update(MASTER_ADDR="127.0.0.1", PS_PORT=str(free_port("127.0.0.1")), WORLD_SIZE="1", PS_SERVERS="1", RANK="0",
               PS_SERVER_RANK="0", PYTHONPATH=os.pathsep.join(sys.path))
    serving = subprocess.Popen([path], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True)
    try:
        done = subprocess.run([sys.executable, "-c", TRIAL], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=180)
        if done.returncode == 0:
            serving.wait(30)
    except subprocess.TimeoutExpired:
        return "failed", "a job of one server and one worker did not end within 3 minutes"
    finally:
        serving.kill()
        words, _ = serving.communicate()
    if done.returncode == 0:
        return "a job of one server and one worker made a step", ""
    last = (done.stdout.strip() or words.strip() or "no reason given").splitlines()[-1]
    return "failed", f"a job of one server and one worker failed: {last}"


def driver() -> Result:
    """NVIDIA's, as the library loads it."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return "none", f"NVIDIA's driver is not there ({error}); in a container: --gpus all"
    code, version, n = cuda.cuInit(0), ctypes.c_int(), ctypes.c_int()
    if code:
        return "none", f"NVIDIA's driver finds no GPU (cuInit: {code}): see what nvidia-smi says"
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGetCount(ctypes.byref(n))
    return f"for CUDA {version.value // 1000}.{version.value // 10 % 100}, {n.value} GPUs", ""


def gpus() -> Result:
    """As PyTorch sees them."""
    if importlib.util.find_spec("torch") is None:
        return "none", ""
    import torch

    cuda: typing.Any = torch.cuda
    if torch.version.cuda is None:
        return "none", f"PyTorch {torch.__version__} was built without CUDA: pip install torch"
    if not cuda.is_available():
        return "none", f"PyTorch {torch.__version__} (CUDA {torch.version.cuda}) finds no GPU that it can use"
    names = [f"{i}: {cuda.get_device_name(i)}, {cuda.get_device_properties(i).total_memory >> 20} MiB"
             for i in range(cuda.device_count())]
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    fault = f"{local} ranks of this host share {len(names)} GPUs" if local > len(names) else ""
    return "; ".join(names), fault


def pinning() -> Result:
    """Of memory that copies to and from a GPU use."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return "any memory may be locked", ""
    return f"{soft >> 10} KiB may be locked (ulimit -l)", (
        "" if soft >= 1 << 30 or os.geteuid() == 0 else
        "little memory may be locked: where the driver cannot pin the arenas, copies are 5 to 10 times slower "
        "(ulimit -l unlimited; a container: --ulimit memlock=-1)")


def overrides() -> Result:
    names = ("CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUDA_LAUNCH_BLOCKING")
    found = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return " ".join(found) or "none is set", ""


GPU_CHECKS: "dict[str, typing.Callable[[], Result]]" = {
    "driver": driver, "gpus": gpus, "locked memory": pinning, "cuda variables": overrides,
}
CHECKS: "dict[str, typing.Callable[[], Result]]" = {
    "python": lambda: (f"{platform.python_version()}, {sys.executable}", ""),
    "package": lambda: (f"{__version__}, {_library.PACKAGE}", ""),
    "library": library, "server": server, "pytorch": pytorch, "environment": environment,
    "coordinator": coordinator, "shared memory": shared_memory, "trial": trial,
}


def main() -> int:
    wrong = [word for word in sys.argv[1:] if word != "--gpu"]
    if wrong:
        print(f"pstrain.doctor: {wrong[0]}: the only argument is --gpu", file=sys.stderr)
        return 2
    faults = []
    for name, check in {**CHECKS, **(GPU_CHECKS if "--gpu" in sys.argv else {})}.items():
        try:
            found, fault = check()
        except Exception as error:  # so that the others are made
            found, fault = "failed", f"{type(error).__name__}: {error}"
        print(f"{name:<14} {found}", flush=True)
        if fault:
            faults.append(f"{name}: {fault}")
    for fault in faults:
        print(f"to mend: {fault}")
    if not faults:
        print("nothing to mend")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
