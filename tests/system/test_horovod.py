"""pstrain.horovod: Horovod's and BytePS's calls. Jobs of psrun whose workers are tests/system/python/horovod_worker.py."""
import subprocess
import unittest

from jobs import BIN, ROOT, first, free_port, kill
from test_python import FAST, PYTHON, PythonTest, environment

WORKER = str(ROOT / "tests/system/python/horovod_worker.py")
PLACE = ("import torch, pstrain.horovod as hvd; hvd.init(); "
         "print(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), "
         "hvd.allreduce(torch.ones(2000), op=hvd.Sum)[7].item(), hvd.join()); hvd.shutdown()")


class Horovod(PythonTest):
    def case(self, *case, code=0, **how):
        return self.job(*case, code=code, program=(PYTHON, WORKER), servers=1, **how)

    def fine(self, *case, workers=2, **how):
        text = self.case(*case, workers=workers, **how)
        self.assertEqual(text.count(": fine"), workers, text)

    def test_calls(self):
        self.fine("calls", workers=3)

    def test_refusals(self):
        self.fine("refusals")

    def test_training_has_ddps_losses(self):
        for name in first(1, ("adamw", "sgd")):
            with self.subTest(name=name):
                self.fine("training", name)

    def test_steps(self):
        self.fine("steps")

    def test_beside_a_process_group(self):
        self.fine("beside_a_group", settings=[*FAST, "exchange.shm=off"])

    def test_a_rank_that_fails(self):
        for how, words in first(2, (("raises", "no such picture"), ("breaks", "no room"), ("leaves", "worker 1"),
                                     ("dies", "worker 1"))):
            with self.subTest(how=how):
                text = self.case("dies", how, code=1)
                self.assertIn("rank 0: was told", text)
                self.assertIn(words, text)

    def test_without_a_launcher(self):
        env = {key: value for key, value in environment().items() if key not in ("RANK", "WORLD_SIZE")}
        said = subprocess.run([PYTHON, "-c", PLACE], env=env, capture_output=True, text=True, check=True, timeout=100)
        self.assertEqual(said.stdout, "0 1 0 1 0 1 1.0 0\n")

    def test_mpiruns_variables(self):
        at = f"tcp://127.0.0.1:{free_port()}"
        words = ["--init-method", at, "--rank", "0", "--world-size", "2", "--servers", "1"]
        server = subprocess.Popen([BIN / "ps-server", *words], stderr=subprocess.DEVNULL)
        self.addCleanup(kill, server)
        workers = []
        for rank in range(2):
            env = dict(environment(), PS_INIT_METHOD=at, PS_SERVERS="1", OMPI_COMM_WORLD_RANK=str(rank),
                       OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_RANK="0", OMPI_COMM_WORLD_LOCAL_SIZE="1")
            workers.append(subprocess.Popen([PYTHON, "-c", PLACE], env=env, stdout=subprocess.PIPE, text=True))
            self.addCleanup(kill, workers[-1])
        said = [worker.communicate(timeout=100)[0] for worker in workers]
        self.assertEqual([s[:13] for s in said], ["0 2 0 1 0 2 2", "1 2 0 1 1 2 2"])


if __name__ == "__main__":
    unittest.main()
