"""What test_ray.py runs: python3 ray_fits.py FOLDER trains by Ray Train, several times; without a folder, a worker of psrun
trains the same. Prints what the test reads."""
import contextlib
import os
import pathlib
import signal
import sys

import torch
import pstrain


def train(config):
    """Rank 1 may have an accident in the second step, once."""
    pstrain.init()
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    optimizer = pstrain.Optimizer(net.named_parameters(), "adam", lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        loss = (net(torch.full((2, 4), pstrain.rank() + 1.0)) ** 2).mean()
        loss.backward()
        optimizer.step()
        if step == 1 and pstrain.rank() == 1 and not os.path.exists(config["once"]):
            pathlib.Path(config["once"]).touch()
            ACCIDENTS[config["accident"]]()
    optimizer.synchronize()
    value = pstrain.all_reduce(loss.detach().double().clone()).item()
    if pstrain.rank() == 0:
        print("loss", value.hex(), file=open(config["says"], "w"))


def kill_server():
    port = os.environ["PS_INIT_METHOD"].rpartition(":")[2]
    for there in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"PS_PORT={port}".encode() in (words := there.read_bytes().split(b"\0")) and b"PS_SERVER_RANK=0" in words:
                os.kill(int(there.parent.name), signal.SIGKILL)


def fail():
    raise ValueError("no such weight")


ACCIDENTS = {"none": lambda: None, "killed worker": lambda: os.kill(os.getpid(), signal.SIGKILL),
             "killed server": kill_server, "exception": fail}


def killed_server():
    """What its actor says of it."""
    import pstrain.ray

    server = pstrain.ray._Server()
    assert server.last_words(1) == ""
    server.start(["--init-method", "tcp://127.0.0.1:1", "--rank", "1", "--world-size", "1"], {"PS_SERVERS": "2"})
    server._process.kill()
    server._process.wait()
    print("server:", server.last_words(1), flush=True)


def fits(folder):
    import ray
    from pstrain.ray import PstrainConfig
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    killed_server()
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    for name, restarts, more in (("none", 0, {"servers": 2}), ("killed worker", 1, {}), ("killed server", 1, {}),
                                 ("exception", 0, {}), ("none", 0, {"server_resources": {"CPU": 99}, "placed_within_s": 1})):
        said = f"{folder}/loss of {name}"
        trainer = TorchTrainer(
            train, train_loop_config={"accident": name, "once": f"{folder}/{name}", "says": said},
            torch_config=PstrainConfig(**more), scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=f"{folder}/runs", failure_config=FailureConfig(max_failures=restarts)))
        try:
            trainer.fit()
            print(f"{name}:", pathlib.Path(said).read_text(), flush=True)
        except Exception as error:
            print(f"{name}: {type(error).__name__}:", " | ".join(str(error).splitlines()), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        fits(sys.argv[1])
    else:
        train({"accident": "none", "once": "/dev/null", "says": "/dev/stdout"})
