"""Runs cells in a Jupyter kernel, as a notebook does: a class and a function of its own, an interrupt, and the same again.
Prints what each cell gives."""
import re
from jupyter_client.manager import start_new_kernel

CELLS = ("""import torch, pstrain
class Net(torch.nn.Linear):
    pass
def train(waits):
    pstrain.init()
    net = Net(1, 1, bias=False)
    torch.nn.init.zeros_(net.weight)
    optimizer = pstrain.Optimizer(net.named_parameters(), "sgd", lr=0.5)
    (net(torch.ones(1, 1)) * (pstrain.rank() + 1)).sum().backward()
    optimizer.step()
    optimizer.synchronize()
    print("rank", pstrain.rank(), "has stepped")
    while waits:
        pstrain.barrier()
    return net
""", "[(type(net) is Net, net.weight.item()) for net in pstrain.launch(train, (False,))]", "pstrain.launch(train, (True,))",
         "[type(net) is Net for net in pstrain.launch(train, (False,), verbose=True)]", "pstrain.launch(train, (1, 2))")

manager, client = start_new_kernel()


def show(message):
    content, kind = message["content"], message["header"]["msg_type"]
    if kind == "stream":
        print("printed", content["text"], flush=True)
        if cell == CELLS[2] and "has stepped" in content["text"]:
            manager.interrupt_kernel()
    elif kind == "execute_result":
        print("result", content["data"]["text/plain"])
    elif kind == "error":
        print("error", content["ename"], re.sub(r"\x1b\[[\d;]*m", "", content["evalue"]))


try:
    for cell in CELLS:
        client.execute_interactive(cell, timeout=120, output_hook=show)
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
