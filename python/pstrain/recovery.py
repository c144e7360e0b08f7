"""A State: what a program needs to go on after a death, and the commits that keep it."""
from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import pathlib
import secrets
import signal
import threading
import time
import types
import typing
import weakref

import torch

from . import _commits, _events, _random, _spares, job as jobs
from ._commits import Folder, Head, Held, Store, open_file
from .errors import Error, InputError, PeerError, TimeoutError
from .optimizer import Optimizer
from .sampler import DistributedSampler

log = logging.getLogger("pstrain")
# How the state of a thing is taken and given back: PyTorch's modules and optimizers; its generators, NumPy's; Python's.
_WAYS = (("state_dict", "load_state_dict"), ("get_state", "set_state"), ("getstate", "setstate"))
_PLAIN = (int, float, complex, str, bytes, bool, type(None), list, tuple, dict, set, torch.Tensor)
_OWN = "the attributes"  # the blob of what is each rank's own
_ROWS = "the embedding tables"  # the blob that says where servers have their rows

Choice = typing.Tuple[Store, Head]


class _Found(typing.NamedTuple):
    """A commit from which the job can go on."""

    store: Store
    number: int
    mine: "Head | None"  # this rank's part, where it is there
    lacking: "list[int]"  # ranks that have no part, nor a spare of it
    givers: "dict[int, int]"  # ranks whose part another one has a spare of, and that one
    spares: "list[Head]"  # those that this rank has


class State:
    """What a job goes on with: a model, optimizers, whatever has a state, and plain values.

        state = pstrain.State(model, optimizer, sampler=sampler, epoch=0, step=0)
        state.sync()
        for state.epoch in range(state.epoch, epochs):
            sampler.set_epoch(state.epoch)
            for images, labels in sampler.batches(loader):
                ...
                optimizer.step()
                state.step += 1
                if state.step % 100 == 0:
                    state.commit()

    model, optimizer, more: things with state_dict() and load_state_dict() (modules, any optimizer, schedulers,
    GradScaler, pstrain.DistributedSampler) or get_state() and set_state() (torch.Generator), and plain values: numbers,
    texts, tensors, lists, dicts. They are attributes of the State; a plain value may be assigned. Put into it all that
    the training changes. The states of the random numbers of PyTorch, Python and NumPy are always part of it.
    folder: where commits are on a disk; with several hosts, best one that all see. None: in memory, where
    psrun --restarts keeps them until it ends; elsewhere in this process, for restore() alone.
    disk_every: with a folder and under psrun --restarts, each disk_every-th commit is on the disk, the others are in
    memory.
    rows_full_every: with embedding tables each rows_full_every-th of the commits whose rows are written to files has all
    rows, the others what has changed since.

    A commit is what all ranks have when they call it after the same step. Two are kept. What is the same on all ranks
    of a host is there once; in memory each of several hosts also keeps what the one before it has alone; with
    pstrain.Optimizer rank 0 also has what the servers know. Rows of embedding tables stay with the
    servers: they keep them in memory, and write them to the folder (without one, where psrun keeps commits). Files are read as torch.load
    reads them without weights_only: use folders of people you trust.
    """

    def __init__(self, model: typing.Any = None, optimizer: typing.Any = None, *,
                 folder: "str | os.PathLike[str] | None" = None, disk_every: int = 1, rows_full_every: int = 1,
                 **more: typing.Any) -> None:
        self._job = job = jobs.current()
        self._members: "dict[str, typing.Any]" = {}
        self._values: "dict[str, typing.Any]" = {}
        given = {"model": model, "optimizer": optimizer}
        for name, what in {**{n: w for n, w in given.items() if w is not None}, **more}.items():
            self._add(name, what)
        for word, n in (("disk_every", disk_every), ("rows_full_every", rows_full_every)):
            if isinstance(n, bool) or not isinstance(n, int) or n < 1:
                raise InputError(f"rank {job.rank}: {word}={n!r} is not a number from 1")
        self._every, self._rows_every = disk_every, rows_full_every
        self._rows_written = 0  # commits with files of rows
        self._warned = False  # that there are none
        self._rows_in: "dict[int, set[int]]" = {}  # by commit: those whose files of rows it names
        self._replaced = False  # another State has its folder now
        self._disk = self._on_disk(folder) if folder is not None else None
        self._memory = self._in_memory()
        self._token = ""  # of this start of the job, from sync() on
        self._number = 0  # of the last commit
        self._last: "Choice | None" = None
        self._lock = self._lock_folder()

    def _on_disk(self, folder: "str | os.PathLike[str]") -> Folder:
        path = pathlib.Path(folder).absolute()
        for other in _states:  # a notebook's cell that was run again
            other._replaced = other._replaced or other._disk is not None and other._disk.places == [path]
        return Folder([path], self._job.rank, True)

    def _in_memory(self) -> "Store | None":
        global _made
        places = [pathlib.Path(p) / f"state-{_made}" for p in os.environ.get(_commits.VARIABLE, "").split(":") if p]
        _made += 1
        _states.add(self)
        if places:
            return Folder(places, self._job.rank, False)
        return Held(self._job.rank) if self._disk is None else None

    # ---- what it consists of ----

    def _add(self, name: str, what: typing.Any) -> None:
        if name.startswith("_") or hasattr(type(self), name):
            raise InputError(f"rank {self._job.rank}: {name} cannot be the name of a part of a State")
        if _way(what) is not None:
            self._members[name] = what
            if isinstance(what, DistributedSampler):
                what.made_steps = self._steps
        else:
            self._values[name] = self._plain(name, what)

    def _plain(self, name: str, value: typing.Any) -> typing.Any:
        """The value. InputError where it is not one that a copy can replace."""
        left, seen = [value], {id(value)}  # a list may hold itself
        while left:
            part = left.pop()
            if isinstance(part, (list, tuple, set, dict)):
                held = [each for each in (part.values() if isinstance(part, dict) else part) if id(each) not in seen]
                seen.update(map(id, held))
                left += held
                continue
            fault = _not_plain(part)
            if fault:
                raise InputError(f"rank {self._job.rank}: the State's {name} is or holds a {type(part).__name__}, "
                                 f"{fault}")
        return value

    def __getattr__(self, name: str) -> typing.Any:
        if name.startswith("_"):
            raise AttributeError(name)
        for parts in self._members, self._values:
            if name in parts:
                return parts[name]
        raise AttributeError(f"rank {self._job.rank}: this State has no {name}; it has "
                             f"{_listed([*self._members, *self._values])}")

    def __setattr__(self, name: str, value: typing.Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        elif name in self._values:
            self._values[name] = self._plain(name, value)
        else:
            raise AttributeError(f"rank {self._job.rank}: {name} of this State cannot be assigned, but "
                                 f"{_listed(self._values)} can: give it when the State is made")

    def _of(self, kind: type) -> "dict[str, typing.Any]":
        return {name: member for name, member in self._members.items() if isinstance(member, kind)}

    def _steps(self) -> "list[int] | None":
        """Those that the servers' optimizers have made; None: there is no such optimizer."""
        return [o.steps for o in self._of(Optimizer).values()] or None

    def _row_steps(self) -> "int | None":
        """Of the embedding tables; None: there are none."""
        rows = self._job.rows()
        return rows.steps if rows is not None else None

    def _where(self) -> str:
        """For people: where the job is."""
        named = {"step": s for s in (self._steps() or ())[:1]}
        named.update({n: v for n, v in self._values.items() if isinstance(v, int) and not isinstance(v, bool)})
        return ", ".join(f"{name} {value}" for name, value in named.items())

    # ---- commit ----

    def commit(self, disk: "bool | None" = None) -> None:
        """Keeps the present state. Collective: every rank calls it after the same step.

        disk: whether it goes to the folder; None: as disk_every says. Returns when all ranks have written. If a
        process dies meanwhile, the commit before counts. Raises InputError (between a batch and its step), PeerError
        (the ranks are not at the same step; it names two of them), Error (no room; the commit before stays).
        """
        self._check_job()
        self._check_between("commit()")
        number, rank = self._number + 1, self._job.rank
        store = self._store(number, disk)
        self._check_same(number)
        blobs, keeps_back = self._collect()
        store.keep({number, store.last}, self._rows_in.get(store.last, ()))
        if self._job.rows() is not None:
            blobs[_ROWS] = self._keep_rows(store, number).encode()
        said = self._say(store, blobs)
        head = self._agree(store, number, blobs, said, keeps_back)
        in_memory = store is self._memory and isinstance(store, Folder)
        kept = _spares.exchange(self._job, _spares.plan(said), said, blobs) if in_memory else []

        def write() -> None:
            store.write(head, blobs)
            for spare, theirs in kept:
                typing.cast(Folder, store).write_spare(spare.head(head, said), theirs)
            if rank > 0:
                store.finish()

        self._check_written(store, head, _attempt(write))
        if rank == 0:
            store.finish()
            _events.tell_commit(number, head.place)
        store.finish_spares()
        store.last = self._number = number
        self._last = store, head
        lasts = {each.last for each in (self._memory, self._disk) if each is not None}
        self._rows_in = {n: named for n, named in self._rows_in.items() if n in lasts}

    def _check_job(self) -> None:
        if jobs.current() is not self._job:
            raise InputError(f"rank {self._job.rank}: this State is of a job that is over")

    def _check_between(self, what: str) -> None:
        for sampler in self._of(DistributedSampler).values():
            sampler.check_between(what)

    def _store(self, number: int, disk: "bool | None") -> Store:
        if disk and self._disk is None:
            raise InputError(f"rank {self._job.rank}: commit(disk=True): name a folder when the State is made")
        if not self._token:
            raise InputError(f"rank {self._job.rank}: commit() before sync(): call sync() once, when all is made")
        if self._replaced:
            raise InputError(f"rank {self._job.rank}: a State that was made later has the folder {self._disk} now")
        if self._memory is None or self._disk is not None and (number % self._every == 0 if disk is None else disk):
            assert self._disk is not None
            return self._disk
        return self._memory

    def _check_same(self, number: int) -> None:
        """PeerError where the ranks are at different places."""
        samplers = {n: [s.epoch, s.position] for n, s in self._of(DistributedSampler).items()}
        mine = json.dumps([number, self._steps(), self._row_steps(), samplers])
        try:
            said = _gather(self._job, mine)
        except TimeoutError as error:
            raise TimeoutError(f"rank {self._job.rank}: commit() at {_place(mine)}: {error}; every rank calls it after "
                               "the same step") from error
        other = next((rank for rank, text in enumerate(said) if text != said[0]), None)
        if other is not None:
            raise PeerError(f"rank {self._job.rank}: commit() on rank 0 at {_place(said[0])}, on rank {other} at "
                            f"{_place(said[other])}: every rank calls it after the same step")

    def _keep_rows(self, store: Store, number: int) -> str:
        """The servers keep their rows as they are. The manifest."""
        rows, said = self._job.rows(), ("", "")
        rows.start()
        writes, folder = self._writes_rows(store), getattr(store, "of_rows", "")
        if self._job.rank == 0:
            said = rows.keep(writes, str(folder), _commits.rows_name(number))
        manifest, fault = json.loads(_gather(self._job, json.dumps(said))[0])
        self._rows_written = 0 if fault else self._rows_written + bool(writes)
        if fault and store is self._disk:
            self._keep_last(store)
            raise Error(f"rank {self._job.rank}: the rows of commit {number} could not be written: {fault}: name a folder "
                        f"that all servers see, with room; {_what_stays(store)}")
        if fault and self._job.rank == 0 and not self._warned:
            self._warned = True
            log.warning("pstrain: rows are in the servers' memory alone: the death of a server loses them: %s", fault)
        self._rows_in[number] = _commits.commits_of_rows(manifest)
        return str(manifest)

    def _writes_rows(self, store: Store) -> int:
        """pstrain_rows_writes. Commits in memory are files only where no others are."""
        if isinstance(store, Held) or store is self._memory and self._disk is not None:
            return 0
        if self._rows_every == 1:
            return 1
        return 3 if self._rows_written % self._rows_every else 2

    def _collect(self) -> "tuple[dict[str, _commits.Blob], bool]":
        """The blobs, and whether codecs keep something back."""
        states: "dict[str, typing.Any]" = {}
        for name, optimizer in self._of(Optimizer).items():  # first: they bring the weights up to date
            optimizer.start()
            states[name] = optimizer.state_dict()
        keeps_back = any("feedback" in state.get("pstrain", {}) for state in states.values())
        with self._rows_apart():
            for name, member in self._members.items():
                if name not in states:
                    take, _ = _way(member) or ("", "")
                    states[name] = _without_methods(member, getattr(member, take)())
        values = {name: self._plain(name, value) for name, value in self._values.items()}
        rows = self._job.rows()
        states[_OWN] = {"values": values, "random": _random.save(), "rates": [] if rows is None else list(rows.rates)}
        return {name: self._dump(name, state) for name, state in states.items()}, keeps_back

    @contextlib.contextmanager
    def _rows_apart(self) -> "typing.Iterator[None]":
        """Modules' state_dict() and load_state_dict() leave out what is on the servers."""
        rows = self._job.rows()
        if rows is None:
            yield
            return
        rows.apart = True
        try:
            yield
        finally:
            rows.apart = False

    def _dump(self, name: str, state: typing.Any) -> _commits.Blob:
        out = io.BytesIO()
        try:
            torch.save(state, out)
        except Exception as error:  # pickle's, of whatever the program has put there
            raise InputError(f"rank {self._job.rank}: the State's {name} cannot be saved: {_line(error)}") from error
        return out.getbuffer()

    def _say(self, store: Store, blobs: "dict[str, _commits.Blob]") -> _spares.Said:
        """Of each rank: which files it sees, and what it has."""
        mine = {name: (_commits.digest(blob), len(blob)) for name, blob in blobs.items()}
        return [json.loads(text) for text in _gather(self._job, json.dumps([store.identity(), mine]))]

    def _agree(self, store: Store, number: int, blobs: "dict[str, _commits.Blob]", said: _spares.Said,
               keeps_back: bool) -> Head:
        """The head of this rank's part: what the first rank that sees the same folder has as well is left to it."""
        rank = self._job.rank
        identity, mine = said[rank]
        first = next(r for r, (other, _) in enumerate(said) if other == identity)
        owners = {name: first if said[first][1].get(name) == own else rank for name, own in mine.items()}
        return Head(number=number, token=self._token, after=store.last, rank=rank, size=self._job.size,
                    place=self._where(), keeps_back=keeps_back,
                    blobs=[(name, len(blob), mine[name][0], owners[name]) for name, blob in blobs.items()])

    def _check_written(self, store: Store, head: Head, fault: str) -> None:
        """Error, on every rank, where one could not write."""
        faults = _gather(self._job, fault)
        failed = next((rank for rank, text in enumerate(faults) if text), None)
        if failed is None:
            return
        self._keep_last(store)
        mend = ("free some of the disk, or name another folder" if store is self._disk else
                "give it more (docker: --shm-size), or name a folder= on a disk")
        raise Error(f"rank {self._job.rank}: commit {head.number} could not be written by rank {failed} into {store}: "
                    f"{faults[failed]}: {mend}; {_what_stays(store)}")

    def _keep_last(self, store: Store) -> None:
        """Removes what ranks and servers have written of the commit after it, which has failed. Files of rows to which the
        next one would add may be among it: it has all rows."""
        self._rows_written = 0
        with contextlib.suppress(OSError):  # of a disk that has failed: the error says more
            store.keep({store.last}, self._rows_in.get(store.last, ()))

    # ---- going back ----

    def sync(self) -> bool:
        """Takes the newest commit that the job has, where it has one. Returns whether it has. Collective, once, when
        all that the State consists of is made, and before the first forward pass.

        A rank whose host has lost its memory gets its part from the next host's. One that has none anywhere (the job has
        more ranks now) takes rank 0's; its random numbers begin anew. Raises InputError (the commit is of another model, or
        of another number of ranks with a codec that keeps something back; commits are there, and none is whole).
        """
        self._check_job()
        if self._has_begun():
            raise InputError(f"rank {self._job.rank}: sync() comes before the first forward pass of the model of a "
                             "pstrain.Optimizer")
        self._token = self._token or _gather(self._job, secrets.token_hex(8))[0]
        chosen, faults = self._find()
        while chosen:
            found = chosen.pop()
            source, mine = self._part(found)
            if self._rows_are_there(source, mine):
                self._take(source, mine, found.lacking)
                return True
            faults.append(f"rank {self._job.rank}: the rows of commit {found.number} in {found.store} were in the memory of "
                          "servers that have ended: name a folder= that all servers see, and start the job again to begin anew")
        if faults:
            raise InputError(faults[0])
        if self._job.rank == 0:
            _events.tell_restored(0, "")
        return False

    def _find(self) -> "tuple[list[_Found], list[str]]":
        """The commits from which the job can go on, the newest last, and what is wrong with others."""
        stores = [store for store in (self._memory, self._disk) if store is not None]
        own = [store.find() for store in stores]
        spares = [store.find_spares() if self._is_first(store) else [] for store in stores]
        said = [json.loads(text) for text in _gather(self._job, json.dumps(
            [[[(number, head.token, head.after) if head else (number, "", 0) for number, head in heads.items()],
              [(head.rank, head.number, head.token, head.after) for head in theirs]] for heads, theirs in zip(own, spares)]))]
        chosen, faults = [], []
        for place, store in enumerate(stores):
            heads, givers = _with_spares([parts[place] for parts in said])
            try:
                key = _choose(heads)
            except ValueError as error:
                mend = "empty the folder" if store is self._disk else "start the job again"
                faults.append(f"rank {self._job.rank}: {error} in {store}: {mend} to begin anew")
                continue
            if key is not None:
                store.last = number = key[0]
                chosen.append(_Found(store, number, own[place].get(number), [r for r, each in enumerate(heads) if not each],
                                     {rank: giver for (rank, n), giver in givers.items() if n == number},
                                     [head for head in spares[place] if head.number == number]))
        return sorted(chosen, key=lambda found: found.number), faults

    def _is_first(self, store: Store) -> bool:
        """Whether no rank below sees the same files."""
        said = _gather(self._job, store.identity())
        return said.index(said[self._job.rank]) == self._job.rank

    def _part(self, found: "_Found") -> "tuple[Store, Head | None]":
        """This rank's part, and what has it: its host's memory, or this process, which has got it from another host."""
        source, mine = found.store, found.mine
        for rank, giver in sorted(found.givers.items()):
            spare = next((head for head in found.spares if head.rank == rank), None) if giver == self._job.rank else None
            blobs = self._broadcast(found.store, spare, giver)
            if rank == self._job.rank:
                mine = _commits.parse_head(bytes(blobs.pop("head")))
                source = _commits.Given(found.store, rank, {name: bytes(blob) for name, blob in blobs.items()})
        return source, mine

    def _rows_are_there(self, store: Store, mine: "Head | None") -> bool:
        """Whether servers have the rows of a commit in memory, or files are named: rank 0 knows."""
        there = True
        if self._job.rank == 0 and mine and _names_rows(mine) and self._job.rows() is not None:
            manifest = store.read(mine, _ROWS).decode()
            there = bool(_commits.commits_of_rows(manifest)) or self._job.rows().are_kept(manifest)
        return _gather(self._job, str(there))[0] == str(True)

    def _take(self, store: Store, mine: "Head | None", lacking: "list[int]") -> None:
        """Goes on from a commit, of which the ranks in `lacking` have nothing."""
        theirs = self._broadcast(store, mine if self._job.rank == 0 else None, 0) if lacking else {}
        head = mine or _commits.parse_head(bytes(theirs["head"]))
        assert head is not None
        if head.keeps_back and head.size != self._job.size:
            raise InputError(f"rank {self._job.rank}: commit {head.number} in {store} is of {head.size} ranks, and the "
                             f"codec of each keeps a part of its gradients: go on with {head.size} workers, or begin "
                             "anew with an empty folder")
        self._load(head, store, theirs if mine is None else None)
        self._number, self._last = head.number, (store, head) if mine else None
        if self._job.rank == 0:
            _events.tell_restored(head.number, head.place)
            log.info("pstrain: the job goes on from commit %d (%s)", head.number, head.place)

    def _broadcast(self, store: Store, head: "Head | None", root: int) -> "dict[str, bytearray]":
        """A head of the root's, and its blobs."""
        session = self._job.session
        own = {"head": _commits.head_text(head), **{n: store.read(head, n) for n, *_ in head.blobs}} if head else {}
        sizes = json.loads(_gather(self._job, json.dumps({name: len(blob) for name, blob in own.items()}))[root])
        out = {}
        for name, size in sizes.items():
            out[name] = bytearray(own.get(name, bytes(size)))
            session.broadcast(_address(out[name]), size, root)
        return out

    def _load(self, head: Head, store: Store, theirs: "dict[str, bytearray] | None" = None) -> None:
        """theirs: the blobs of rank 0, where this rank has none of its own."""
        names = {name for name, *_ in head.blobs} - {_OWN, _ROWS}
        if _names_rows(head) != (self._job.rows() is not None):
            raise InputError(f"rank {self._job.rank}: commit {head.number} in {store} is of a program "
                             f"with{'' if _names_rows(head) else 'out'} embedding tables: name another folder")
        if names != set(self._members):
            raise InputError(f"rank {self._job.rank}: commit {head.number} in {store} has {_listed(names)}, this State "
                             f"{_listed(self._members)}: it is of another program; name another folder")
        states = {name: self._parse(head, store, name, bytes(theirs[name]) if theirs else store.read(head, name))
                  for name in (*self._members, _OWN)}
        own = states[_OWN]
        self._check_values(head, store, own["values"])
        for name, member in self._members.items():
            if theirs and isinstance(member, Optimizer) and "feedback" in states[name].get("pstrain", {}):
                states[name]["pstrain"]["feedback"].zero_()  # it is rank 0's
            with self._rows_apart():
                self._give(head, store, name, states[name])
        if _names_rows(head):
            manifest = bytes(theirs[_ROWS] if theirs else store.read(head, _ROWS)).decode()
            self._rows_in[head.number] = _commits.commits_of_rows(manifest)
            self._job.rows().go_back(str(getattr(store, "of_rows", "/")), manifest)
            self._job.rows().rates = own.get("rates", self._job.rows().rates)  # a schedule may have moved them
        self._values.update(own["values"])
        if theirs:
            return
        _random.restore(own["random"])
        for sampler in self._of(DistributedSampler).values():
            sampler.begins = lambda: _random.restore(own["random"])

    def _parse(self, head: Head, store: Store, name: str, blob: bytes) -> typing.Any:
        try:
            return torch.load(io.BytesIO(blob), map_location="cpu", weights_only=False)
        except Exception as error:  # pickle's: a class that is not there any more
            raise InputError(f"rank {self._job.rank}: {name} of commit {head.number} in {store} cannot be read by this "
                             f"program: {_line(error)}") from error

    def _check_values(self, head: Head, store: Store, values: "dict[str, typing.Any]") -> None:
        unknown = set(values) - set(self._values)
        if unknown:
            raise InputError(f"rank {self._job.rank}: commit {head.number} in {store} has {_listed(unknown)}, which "
                             "this State lacks: it is of another program; name another folder")

    def _give(self, head: Head, store: Store, name: str, state: typing.Any) -> None:
        _, give = _way(self._members[name]) or ("", "")
        try:
            getattr(self._members[name], give)(state)
        except Error:
            raise
        except Exception as error:
            raise InputError(f"rank {self._job.rank}: {name} does not take its state of commit {head.number} in "
                             f"{store}: {_line(error)} (is it of another model? then name another folder)") from error

    def restore(self) -> None:
        """Goes back to the last commit, in this process: after a loss that is not finite, or an error that was
        handled. Collective. The servers of a pstrain.Optimizer do not go back once they have begun; then
        let the error end the process: psrun --restarts starts all again. InputError then, and without a commit."""
        self._check_job()
        rank = self._job.rank
        if self._last is None:
            raise InputError(f"rank {rank}: restore() without a commit: call commit() before, once, after sync()")
        if self._has_begun():
            raise InputError(f"rank {rank}: restore(): the servers of a pstrain.Optimizer do not go back within a job: "
                             "let the error end the program; with psrun --restarts it goes on from commit "
                             f"{self._number}")
        store, head = self._last
        said = _gather(self._job, json.dumps(self._row_steps()))  # now rank 0 has given its part its name
        other = next((rank for rank, text in enumerate(said) if text != said[0]), None)
        if other is not None:
            raise PeerError(f"rank {rank}: restore() on rank 0 after {said[0]} steps of the rows, on rank {other} after "
                            f"{said[other]}: every rank calls it after the same step")
        self._load(head, store)

    def _has_begun(self) -> bool:
        return any(optimizer.opened for optimizer in self._of(Optimizer).values())

    # ---- the end ----

    def should_stop(self) -> bool:
        """Whether the job is to end: by Ctrl-C, SIGTERM, or a server that was told. The same on every rank; collective,
        after the same step. From the first call on the first signal does no more than this; a second one ends the
        program. Commit then, to the folder, and end the loop."""
        self._check_job()
        self._check_between("should_stop()")
        _listen()
        told = torch.tensor([bool(_told) or self._job.session.should_stop()], dtype=torch.uint8, device="cpu")
        return bool(jobs.all_reduce(told, "max").item())

    def _lock_folder(self) -> typing.Any:
        """Of two jobs only one writes there. A lock that no child inherits: a loader's process may live longer."""
        if self._disk is None or self._job.rank > 0:
            return None
        import fcntl

        try:
            lock = open_file(self._disk.places[0] / "lock", "ab")
        except OSError as error:
            raise InputError(f"rank 0: cannot write {self._disk}/lock: {error.strerror}") from None
        deadline = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except OSError as error:
                if not isinstance(error, BlockingIOError) and not isinstance(error, PermissionError):
                    return lock  # a file system without locks
                if time.monotonic() > deadline:
                    raise InputError(f"rank 0: another job writes its commits into {self._disk}: name another "
                                     "folder") from None
            time.sleep(0.1)


_states: "weakref.WeakSet[State]" = weakref.WeakSet()
_made = 0  # how many States this process has made: each has folders of its own in memory
_LOCK_S = 10.0  # a job that was killed may still be ending


def _what_stays(store: Store) -> str:
    return f"commit {store.last} stays" if store.last else "there is no commit before it"


def _without_methods(member: typing.Any, state: typing.Any) -> typing.Any:
    """PyTorch 1.13's OneCycleLR names a method of its own in its state, which would bring the optimizer along; CyclicLR a
    weak reference to one, which no file takes."""
    if not isinstance(state, dict):
        return state
    called = {key: value() if isinstance(value, weakref.WeakMethod) else value for key, value in state.items()}
    own = [key for key, value in called.items() if getattr(value, "__self__", None) is member]
    return {key: value for key, value in state.items() if key not in own} if own else state


def _way(what: typing.Any) -> "tuple[str, str] | None":
    """The methods that take its state and give it back."""
    if isinstance(what, type):
        return None
    return next((way for way in _WAYS if all(callable(getattr(what, name, None)) for name in way)), None)


def _names_rows(head: Head) -> bool:
    return any(name == _ROWS for name, *_ in head.blobs)


def _not_plain(value: typing.Any) -> str:
    """What is wrong with it as a value that a copy can replace."""
    if _way(value) is not None:
        return "which has a state of its own: give it by a name of its own"
    if not isinstance(value, _PLAIN) and type(value).__module__ != "numpy":
        return "which has no state_dict() and load_state_dict(), and is no plain value: give what has"
    if isinstance(value, torch.Tensor) and value.requires_grad:
        return "which is trained: give the module that it belongs to"
    return ""


def _with_spares(said: "list[typing.Any]") -> "tuple[list[typing.Any], dict[tuple[int, int], int]]":
    """Of each rank (parts, spares of others'): the parts that it has or can be given, the newest first; and who gives
    which, by rank and number."""
    heads, givers = [list(own) for own, _ in said], {}
    for giver, (_, spares) in enumerate(said):
        for rank, number, token, after in spares:
            if rank < len(heads) and not any(n == number and own_token for n, own_token, _ in heads[rank]):
                givers[rank, number] = giver
                heads[rank] = [head for head in heads[rank] if head[0] != number] + [[number, token, after]]
    return [sorted(each, key=lambda head: -int(head[0])) for each in heads], givers


def _choose(found: "list[list[tuple[int, str, int]]]") -> "tuple[int, str] | None":
    """Of (number, token, the one before) by rank, the newest first; token "": it is not whole. The newest commit of
    rank 0 that every rank has which has any. ValueError: there were commits, and none is whole."""
    for number, token, _ in found[0]:
        if token and all(not heads or [number, token] in [list(head[:2]) for head in heads] for heads in found[1:]):
            return number, token
    if found[0] or any(after for heads in found for _, _, after in heads):
        said = "; ".join(f"rank {rank} has {', '.join(str(head[0]) for head in heads) or 'none'}"
                         for rank, heads in enumerate(found))
        raise ValueError(f"the commits are not whole ({said})")
    return None


def _gather(job: jobs.Job, text: str) -> "list[str]":
    return job.session.gather_texts(text)


def _place(said: str) -> str:
    """Of _check_same."""
    number, steps, row_steps, samplers = json.loads(said)
    words = [f"step {steps[0]}" if len(steps) == 1 else f"steps {steps}"] if steps else []
    words += [f"step {row_steps} of the rows"] if row_steps is not None and not steps else []
    words += [f"epoch {epoch} and {position} samples of {name}" for name, (epoch, position) in samplers.items()]
    return ", ".join([f"its commit {number}", *words])


def _attempt(call: "typing.Callable[[], None]") -> str:
    """The error of the system, if there is one."""
    try:
        call()
        return ""
    except OSError as error:
        return error.strerror or str(error)


def _address(memory: "bytearray") -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__


def _listed(names: "typing.Iterable[str]") -> str:
    return ", ".join(sorted(names)) or "nothing"


# ---- signals ----

_told = 0  # the signal that has come
_before: "dict[int, typing.Any]" = {}  # handlers


def _listen() -> None:
    if _before or threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        _before[number] = signal.signal(number, _on_signal)


def _on_signal(number: int, frame: "types.FrameType | None") -> None:
    global _told
    if _told:
        for other, handler in _before.items():
            signal.signal(other, handler)
        os.kill(os.getpid(), number)
    _told = number
