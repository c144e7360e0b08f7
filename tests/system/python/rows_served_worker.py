"""A rank of the jobs of test_rows_served.py, and the process that reads their rows:

python3 rows_served_worker.py train EXPORT [KEY=VALUE...]   rank 0 compares, or waits for the reader
python3 rows_served_worker.py read ADDRESS STEPS BEGUN ENDED
                                                            reads until the rows have made STEPS; prints what it has then
python3 rows_served_worker.py sums EXPORT                   prints the same of an exported file
python3 rows_served_worker.py die ADDRESS                   asks at wrong ports, reads, and is killed
BEGUN and ENDED are FIFOs: who opens one waits for the other.
"""
import os
import signal
import socketserver
import subprocess
import sys
import threading
import unittest

import torch

import pstrain

TABLES = {"user": dict(dim=6, mode="sum"), "item": dict(dim=3, mode="mean", admit=2), "word": dict(dim=4)}
IDS = {"user": torch.tensor([[1, 5, 1 << 40], [7, 7, 1]]), "item": torch.tensor([[3, 4], [2, 9]]),
       "word": torch.arange(400).view(-1, 2)}
BAGS = {name: dict(mode=table.get("mode", "sum")) for name, table in TABLES.items()}
MANY = {"word": torch.arange(60000).view(1, -1), "user": torch.arange(0, 600000, 7).view(1, -1)}  # several messages to a shard


def batch_of(rank, step):
    g = torch.Generator().manual_seed(100 * step + rank)
    few = torch.randint(0, 40 + step, (60,), generator=g)
    return {"user": few.view(-1, 2), "item": few.view(-1, 3), "word": torch.randint(0, 400, (40,), generator=g).view(-1, 2)}


def meet(fifo, mode):
    with open(fifo, mode):
        pass


def compare(rows, served, example):
    """What a member sees between two steps, and what a reader sees."""
    with torch.no_grad():
        for ids in (MANY, IDS):  # MANY are on all shards: afterwards the step is made everywhere
            theirs = rows(ids)
            ours = served(ids)
            for name in theirs:
                assert torch.allclose(ours[name], theirs[name], rtol=1e-6, atol=1e-7), (name, ours[name], theirs[name])
    each = pstrain.rows(os.environ["PS_INIT_METHOD"])
    ids = torch.tensor([5, 1 << 61, 5, 0])
    alone = each({"word": ids})["word"]
    assert torch.equal(alone, rows({"word": ids.view(-1, 1)})["word"]), alone  # to the bit
    said = subprocess.run([example, os.environ["PS_INIT_METHOD"], "word", "5", str(1 << 61)], check=True, stdout=subprocess.PIPE,
                          text=True).stdout.splitlines()
    assert [torch.tensor(list(map(float, line.split()[1:]))).tolist() for line in said[:2]] == alone[:2].tolist(), said
    assert said[2] == f"after {each.steps[0]} steps", said
    weight = each({"word": torch.arange(400)})["word"]
    each.close()
    refused(lambda: each({"word": ids}), "NULL")
    check_padding(weight)


def check_padding(weight):
    """padding_idx as PyTorch counts it, from the end."""
    plain = torch.nn.EmbeddingBag.from_pretrained(weight, mode="sum", padding_idx=-1)
    padded = pstrain.rows(os.environ["PS_INIT_METHOD"], {"word": dict(mode="sum", num_embeddings=len(weight), padding_idx=-1)})
    ids = torch.tensor([[399, 5], [3, 399], [399, 399]])
    assert torch.allclose(padded({"word": ids})["word"], plain(ids), atol=1e-7)
    padded.close()


def refused(call, *parts):
    try:
        call()
    except pstrain.Error as error:
        assert all(part in str(error) for part in parts), (parts, str(error))
        return
    raise AssertionError(parts)


def wrong_ports():
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        server.finish_request = lambda request, _: request.sendall(b"SSH-2.0-some\r\n")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = "tcp://127.0.0.1:%d" % server.server_address[1]
        refused(lambda: pstrain.rows(address, timeout=1000), address, 'it says "SSH-2.0-some\\r\\n"', "psrun --port")
        server.shutdown()
    with unittest.TestCase().assertLogs("pstrain", "WARNING") as said:
        refused(lambda: pstrain.rows("tcp://127.0.0.1:1", timeout=2), "no rows within 2.0 s", "refused")
    assert len(said.output) == 1 and "waiting" in said.output[0] and "refused" in said.output[0], said.output


def misuse(served, address):
    one = torch.tensor([[1]])
    refused(lambda: served({"other": one}), "no table 'other'; there are user, item, word")
    refused(lambda: served({"user": -one}), "table 'user'", "ids from -1")
    refused(lambda: served({"user": one.float()}), "table 'user'", "ids are float32")
    refused(lambda: pstrain.rows(address, {"usr": {}}), address, "no table 'usr'; there are user, item, word")
    refused(lambda: pstrain.rows(address, {"user": dict(dim=5)}), "table 'user': its dim is 6, not 5")
    refused(lambda: pstrain.rows(address, {"user": dict(lr=5)}), "has to be a dict of mode")
    refused(lambda: pstrain.rows(address, {"user": dict(mode="max")}), "no sparse gradient of max")
    refused(lambda: pstrain.rows(address, {"user": dict(num_embeddings=3, padding_idx=3)}), "padding_idx=3 is not one of its 3 rows")
    refused(lambda: pstrain.rows(address, job="another"), address, "another job runs here")
    refused(lambda: pstrain.rows("tcp://127.0.0.1:1", timeout=0.3), "no rows within 0.3 s", "refused")
    refused(lambda: pstrain.rows("tcp://127.0.0.1"), "tcp://127.0.0.1")
    refused(lambda: pstrain.rows(address, timeout=-1), "timeout=-1")


def places(address):
    """The job lets four readers in; two are there."""
    two = [pstrain.rows(address, BAGS) for _ in range(2)]
    refused(lambda: pstrain.rows(address), address, "lets 4 readers of its rows in", "server.readers")
    two.pop().close()
    died = subprocess.run([sys.executable, __file__, "die", address], check=False)
    assert died.returncode == -signal.SIGKILL
    for reader in (*two, pstrain.rows(address, BAGS)):
        reader(IDS)
        reader.close()


def keys(address):
    pstrain.rows(address, BAGS)(IDS)  # with those of this process
    folder, key = os.environ.pop("PS_CURVE_DIR", ""), os.environ.pop("PS_CURVE_KEY", "")
    pstrain.rows(address, BAGS, keys=key or folder)(IDS)
    refused(lambda: pstrain.rows(address, timeout=20), address, "the job has keys", "PS_CURVE_DIR")
    refused(lambda: pstrain.rows(address, keys="/nowhere"), "/nowhere")


def reads_on(served, over):
    while not over.is_set():
        served(IDS)


def train(path, given):
    steps, address = int(given.get("steps", 9)), os.environ.get("PS_INIT_METHOD", "")
    pstrain.init()
    rank = pstrain.rank()
    rows = pstrain.Embeddings(TABLES, optimizer="adagrad", lr=0.1)
    state = pstrain.State(rows, step=0, rows_full_every=1, **{k: given[k] for k in ("folder",) if k in given})
    state.sync()
    served, over, thread = None, threading.Event(), None
    while state.step < steps:
        out = rows(batch_of(rank, state.step))
        sum(each.square().sum() for each in out.values()).backward()
        rows.step()
        state.step += 1
        if "beside" in given and rank == 0 and served is None:
            served = pstrain.rows(address, BAGS)
            misuse(served, address)
            thread = threading.Thread(target=reads_on, args=(pstrain.rows(address, BAGS), over))
            thread.start()
            if "places" in given:
                places(address)
        if rank == 0 and state.step == 1:
            if "keys" in given:
                keys(address)
            if "insecure" in given:
                refused(lambda: pstrain.rows(address), "runs with --insecure", "psrun --curve DIR")
        if served is not None and state.step % 4 == 0:
            compare(rows, served, given["beside"])
            assert served.steps == (state.step, state.step), served.steps
        if state.step == 3 and "begun" in given and rank == 0 and not int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
            meet(given["begun"], "rb")
        if state.step % 2 == 0:
            state.commit()
    if thread is not None:
        over.set()
        thread.join()
    if rank == 0:
        rows.export(path)
        if "ended" in given:
            meet(given["ended"], "rb")
    pstrain.shutdown()


def say(out):
    print(*(each.sum().item().hex() for each in out.values()))


def read(address, steps, begun, ended):
    served = pstrain.rows(address, BAGS, timeout=120)
    out = served(IDS)
    meet(begun, "wb")
    while served.steps[0] < int(steps):
        out = served(IDS)
    say(out)
    meet(ended, "wb")


torch.set_num_threads(1)
if sys.argv[1] == "read":
    read(*sys.argv[2:])
elif sys.argv[1] == "sums":
    say(pstrain.rows(sys.argv[2])(IDS))
elif sys.argv[1] == "die":
    wrong_ports()
    left = pstrain.rows(sys.argv[2], BAGS)
    left(IDS)
    os.kill(os.getpid(), signal.SIGKILL)
else:
    train(sys.argv[2], dict(word.partition("=")[::2] for word in sys.argv[3:]))
