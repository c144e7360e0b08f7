"""A step and the test set's answers in PyTorch, in float32 and under torch.autocast with bfloat16.

autocast_by_hand.py CONFIG INIT OUT: CONFIG is what ps-config-json prints; the weights are those in
INIT. For both ways OUT gets the gradients of one batch that has all training samples
("float32/conv1.weight"), and for the test set the probabilities and the mean loss
("autocast/probabilities", "autocast/loss"). test_bf16.py compares them with a job's.
Exit code 77: this PyTorch has no convolutions of bfloat16 for this processor.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import torch  # noqa: E402

from benchlib import safetensors, torch_data  # noqa: E402
from benchlib.job_config import JobConfig  # noqa: E402
from benchlib.torch_model import Model, loss_of  # noqa: E402


def answers(model, config, samples, narrow):
    """Returns the outputs as float32, and the loss. The loss is float32 in both ways."""
    x, y = samples
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
        try:
            outputs = model(x)
        except RuntimeError as e:
            if "primitive descriptor" not in str(e):
                raise
            print(f"skipped: {e}")
            sys.exit(77)
    return outputs.float(), loss_of(config)(outputs.float(), y)


def main(config_path, init, out):
    torch.set_num_threads(1)
    config = JobConfig.read(config_path)
    train, test = (torch_data.load(config, split) for split in ("train", "test"))
    found = {}
    for way in ("float32", "autocast"):
        model = Model(config)
        model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in safetensors.load(init).items()})
        with torch.no_grad():
            outputs, loss = answers(model.eval(), config, test, way == "autocast")
        found[f"{way}/probabilities"] = outputs.softmax(1).numpy()
        found[f"{way}/loss"] = loss.reshape(1).numpy()
        answers(model.train(), config, train, way == "autocast")[1].backward()
        found.update({f"{way}/{name}": p.grad.numpy() for name, p in model.named_parameters()})
    safetensors.save(out, found)


if __name__ == "__main__":
    main(*sys.argv[1:])
