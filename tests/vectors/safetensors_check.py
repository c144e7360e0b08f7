"""Reads and writes with the safetensors package, for test_safetensors.

    safetensors_check.py read FILE     # as torch.nn.Module.load_state_dict would get it
    safetensors_check.py write FILE    # the same tensors, written by the package
"""
import sys

try:
    import numpy as np
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file
except ImportError as missing:
    print("skipped: %s" % missing)
    sys.exit(77)

SHAPES = {"conv.weight": (2, 1, 3, 3), "conv.bias": (2,), "bn.weight": (2,),
          "bn.bias": (2,), "bn.running_mean": (2,), "bn.running_var": (2,),
          "fc.weight": (3, 18), "fc.bias": (3,)}


def tensors():
    """What the test puts in: element i of a tensor is i + 0.25 * length of its name."""
    made = {name: (np.arange(np.prod(shape), dtype=np.float32)
                   + np.float32(0.25 * len(name))).reshape(shape)
            for name, shape in SHAPES.items()}
    made["bn.num_batches_tracked"] = np.array(7, dtype=np.int64)
    return made


def read(path):
    got, wanted = load_file(path), tensors()
    assert sorted(got) == sorted(wanted), sorted(got)
    for name, value in wanted.items():
        assert got[name].dtype == value.dtype, name
        assert got[name].shape == value.shape, name
        assert (got[name] == value).all(), name
    with safe_open(path, framework="np") as f:
        assert f.metadata() == {"format": "pt", "step": "12 \"quoted\""}, f.metadata()


if __name__ == "__main__":
    if sys.argv[1] == "read":
        read(sys.argv[2])
    else:
        save_file(tensors(), sys.argv[2], metadata={"format": "pt"})
