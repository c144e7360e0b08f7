"""Workers at their own pace in PyTorch, by hand: one process follows a policy.log.

policies_by_hand.py CONFIG INIT LOG OUT: CONFIG is what ps-config-json prints; it begins with the
weights in INIT, does what LOG says, and writes the last weights to OUT. test_policies.py compares
them with a job's.
"""
import json
import sys

from local_by_hand import DistributedSampler, JobConfig, Model, loss_of, optimizer_of, safetensors, torch, torch_data


def ranks(text):
    found = []
    for part in text.split(",") if text != "-" else []:
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


class Samples:
    """A rank's batches: those of the epoch, then those of further passes. No epoch has the order of such a pass."""

    def __init__(self, config, n_samples, rank):
        self.config, self.n_samples, self.rank = config, n_samples, rank

    def begin(self, epoch):
        self.next_pass, self.batches = epoch, []

    def take(self):
        if not self.batches:
            sampler = DistributedSampler(range(self.n_samples), self.config["job.workers"], self.rank, shuffle=True,
                                         seed=self.config["data.seed"])
            sampler.set_epoch(self.next_pass)
            self.next_pass += self.config["train.epochs"]
            self.batches = list(torch.split(torch.tensor(list(sampler)), self.config.batch(self.rank)))
        return self.batches.pop(0)


class Servers:
    def __init__(self, config, init):
        self.config, self.model, self.version = config, Model(config), 0
        self.model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in safetensors.load(init).items()})
        self.optimizer = optimizer_of(config, self.model)
        self.names = [name for name, _ in self.model.named_parameters()]

    def weights(self):
        return self.version, {k: v.clone() for k, v in self.model.state_dict().items()}

    def share(self, n_pushes):
        """The share of a step's samples that the pushes stand for."""
        return 1 if self.config["sync.policy"] == "backup" else n_pushes / self.config["job.workers"]

    def corrected(self, i, p, base, grad):
        """Corrects the gradient of parameter i, which was computed on base: (version, weights)."""
        version, weights = base
        if self.config["sync.correction"] == "lr":
            return grad / max(1, self.version - version)
        if self.config["sync.correction"] == "delay":
            then = weights[self.names[i]]
            return grad + self.config["sync.delay_strength"] * grad * grad * (p.detach() - then)
        return grad

    def apply(self, pushes):
        """pushes: [((version, weights), gradients)]; the gradients were computed on these weights."""
        share = self.share(len(pushes))
        for i, p in enumerate(self.model.parameters()):
            p.grad = sum(self.corrected(i, p, base, grads[i]) for base, grads in pushes) * (share / len(pushes))
        if self.config["optimizer.clip_norm"] > 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config["optimizer.clip_norm"] * share)
        self.optimizer.step()
        self.version += 1


def gradients(config, state, x, y):
    model = Model(config)
    model.load_state_dict(state)
    loss_of(config)(model(x), y).backward()
    return [p.grad for p in model.parameters()]


def main(config_path, init, log, out):
    torch.set_num_threads(1)
    config = JobConfig.read(config_path)
    x, y = torch_data.load(config, "train")
    n = config["job.workers"]
    servers, samples, epoch = Servers(config, init), [Samples(config, len(x), r) for r in range(n)], 0
    base = [servers.weights()] * n
    given, step, counted = {}, 0, 0  # given: by rank, the push that waits
    for s in samples:
        s.begin(0)
    with open(log, encoding="utf-8") as f:
        head = json.loads(f.readline())
        assert head["workers"] == n
        lines = [line.split() for line in f]
    for applied, answered, *rest in lines:
        applied, answered = ranks(applied), ranks(answered)
        for r in {*applied, *answered} - given.keys():
            indices = samples[r].take()
            given[r] = base[r], gradients(config, base[r][1], x[indices], y[indices])
        if applied:
            servers.apply([given[r] for r in applied])
            counted += len(applied)
        for r in answered:
            del given[r]
            base[r] = servers.weights()
        if rest:
            step += servers.version - step if config["sync.policy"] == "backup" else counted // n
            counted = 0
        if rest and step % head["stretch"] == 0:
            epoch += 1
            for s in samples:
                s.begin(epoch)
    safetensors.save(out, {k: p.detach().numpy() for k, p in zip(servers.names, servers.model.parameters())})


if __name__ == "__main__":
    main(*sys.argv[1:])
