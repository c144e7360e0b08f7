"""Where a State's commits are: in files that outlive the process, one for each rank.

    commit-12.rank-3:
        "pstrain commit 1\\n"
        the head's length (8 bytes, little-endian), the head's digest (32)
        the head: JSON, as class Head
        blobs, in the head's order

A blob is what torch.save makes of one thing's state. A rank keeps no blob that is the same as that of the first
rank of its host. A file is written under another name and renamed. Rank 0 renames its own when all others have
theirs: so there is a commit if rank 0 has its file, and what others have beyond that is not used.

    commit-12.rank-3.spare:
        the same, of a rank of another host, in case that one is lost (_spares.py); renamed after rank 0 knows that all
        parts are written
"""
from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import pathlib
import re
import stat
import typing

from .errors import Error, InputError

VARIABLE = "PS_COMMITS"  # folders that psrun has made for its job, of this host, separated by a colon
_MAGIC = b"pstrain commit 1\n"
_NAME = re.compile(r"commit-(\d+)\.rank-(\d+)(\.spare)?(\.new)?")
_ROWS = re.compile(r"commit-(\d+)\.rows-.*")  # that servers have written
_PIECE = 1 << 20
_DIGEST = 32  # bytes of SHA-256

Blob = typing.Union[bytes, memoryview]


def digest(blob: Blob) -> str:
    return hashlib.sha256(blob).hexdigest()


@dataclasses.dataclass
class Head:
    """Of one rank's part of a commit."""

    number: int  # grows with each commit
    token: str  # of the start of the job that has made it: parts of two starts do not belong together
    after: int  # the commit before it in this folder; 0: none
    rank: int
    size: int  # ranks
    place: str  # for people: "step 120, epoch 3"
    keeps_back: bool  # the optimizer's codec has kept something back on each rank
    blobs: "list[tuple[str, int, str, int]]"  # name, bytes, digest, the rank that has it

    @property
    def key(self) -> "tuple[int, str]":
        return self.number, self.token

    def own(self) -> "list[tuple[str, int, str, int]]":
        return [blob for blob in self.blobs if blob[3] == self.rank]


class _File(typing.NamedTuple):
    """Of a rank's part."""

    path: pathlib.Path
    number: int
    rank: int
    spare: bool
    complete: bool  # it has its name

    def whole_head(self) -> "Head | None":
        """None: it is not whole."""
        head = _read_head(self.path)
        return head if head and head.number == self.number and _is_whole(self.path, head) else None


class Folder:
    """Commits on a disk, or in memory: in any of some folders. durable: they outlive the machine."""

    def __init__(self, places: "list[pathlib.Path]", rank: int, durable: bool) -> None:
        self.places, self._rank, self._durable = places, rank, durable
        self.last = 0  # the newest complete commit
        self._new_spares: "list[pathlib.Path]" = []
        try:
            for place in places:
                place.mkdir(mode=0o700, parents=durable, exist_ok=True)
                os.listdir(place)
        except OSError as error:
            raise InputError(f"rank {rank}: the folder of commits {error.filename} cannot be used: "
                             f"{error.strerror}") from None

    def __str__(self) -> str:
        return " or ".join(map(str, self.places))

    @property
    def of_rows(self) -> pathlib.Path:
        """Where servers write rows: the last place, which is on a disk."""
        return self.places[-1]

    def identity(self) -> str:
        """The same for ranks that see the same files."""
        found = os.stat(self.places[0])
        return f"{_boot_id()} {found.st_dev} {found.st_ino}"

    def _list(self) -> "typing.Iterator[_File]":
        for place in self.places:
            for name in os.listdir(place):
                match = _NAME.fullmatch(name)
                if match:
                    yield _File(place / name, int(match[1]), int(match[2]), bool(match[3]), not match[4])

    def find(self) -> "dict[int, Head | None]":
        """This rank's parts by number, the newest first; None: it is not whole."""
        found = {file.number: file.whole_head() for file in self._list()
                 if file.complete and not file.spare and file.rank == self._rank}
        return dict(sorted(found.items(), reverse=True))

    def find_spares(self) -> "list[Head]":
        """Those that are whole."""
        heads = [file.whole_head() for file in self._list() if file.complete and file.spare]
        return [head for head in heads if head is not None]

    def write(self, head: Head, blobs: "dict[str, Blob]") -> None:
        """The part, not yet under its name. OSError: it is not written."""
        self._new, self._new_spares = self._write(head, blobs, ""), []

    def write_spare(self, head: Head, blobs: "dict[str, Blob]") -> None:
        """That of another host's rank, not yet under its name. OSError: it is not written."""
        self._new_spares.append(self._write(head, blobs, ".spare"))

    def _write(self, head: Head, blobs: "dict[str, Blob]", kind: str) -> pathlib.Path:
        text = head_text(head)
        own = [blobs[name] for name, *_ in head.own()]
        front = _MAGIC + len(text).to_bytes(8, "little") + bytes.fromhex(digest(text)) + text
        path = self._roomy(len(front) + sum(map(len, own))) / f"commit-{head.number}.rank-{head.rank}{kind}.new"
        try:
            with open(path, "wb") as f:
                for piece in (front, *own):
                    f.write(piece)
                f.flush()
                if self._durable:
                    os.fsync(f.fileno())
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return path

    def _roomy(self, n_bytes: int) -> pathlib.Path:
        free = {}
        for place in self.places:
            found = os.statvfs(place)
            free[place] = found.f_bavail * found.f_frsize
            if free[place] > n_bytes:
                return place
        said = ", ".join(f"{place} has {free[place] / 1e6:.1f} MB" for place in self.places)
        raise OSError(errno.ENOSPC, f"{n_bytes / 1e6:.1f} MB are needed, {said}")

    def finish(self) -> None:
        """The part gets its name."""
        self._finish(self._new)

    def finish_spares(self) -> None:
        new, self._new_spares = self._new_spares, []
        for path in new:
            self._finish(path)

    def _finish(self, new: pathlib.Path) -> None:
        path = new.with_suffix("")
        for place in self.places:  # one of an earlier start may be in another place
            if place != path.parent:
                (place / path.name).unlink(missing_ok=True)
        os.replace(new, path)
        if self._durable:
            fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def keep(self, numbers: "typing.Collection[int]", of_rows: "typing.Collection[int]" = ()) -> None:
        """Removes all other commits. Every rank that sees the folder may do so. of_rows: commits whose files of rows are
        needed besides."""
        for file in list(self._list()):
            if file.number not in numbers or file.spare and file.number != self.last:  # a spare of an earlier start
                file.path.unlink(missing_ok=True)  # another rank may be faster
        for place in self.places:
            for path in place.iterdir():
                match = _ROWS.fullmatch(path.name)
                if match and int(match[1]) not in {*numbers, *of_rows}:
                    path.unlink(missing_ok=True)

    def read(self, head: Head, name: str) -> bytes:
        """A blob of a commit that was found or written."""
        [owner] = [blob[3] for blob in head.blobs if blob[0] == name]
        for file in self._list():
            found = _read_head(file.path) if file.complete and (file.number, file.rank) == (head.number, owner) else None
            if found is not None and found.key == head.key:
                return _read_blob(file.path, found, name)
        raise Error(f"rank {self._rank}: rank {owner}'s part of commit {head.number} is not in {self} any more")


class Held:
    """The last commit in this process alone: for restore()."""

    def __init__(self, rank: int) -> None:
        self._rank, self.last = rank, 0
        self._new: "dict[str, bytes]" = {}
        self._blobs: "dict[str, bytes]" = {}

    def __str__(self) -> str:
        return "this process"

    def identity(self) -> str:
        return f"rank {self._rank}"

    def find(self) -> "dict[int, Head | None]":
        return {}

    def find_spares(self) -> "list[Head]":
        return []

    def finish_spares(self) -> None:
        pass

    def write(self, head: Head, blobs: "dict[str, Blob]") -> None:
        self._new = {name: bytes(blobs[name]) for name, *_ in head.own()}

    def finish(self) -> None:
        self._blobs = self._new

    def keep(self, numbers: "typing.Collection[int]", of_rows: "typing.Collection[int]" = ()) -> None:
        pass

    def read(self, head: Head, name: str) -> bytes:
        return self._blobs[name]


class Given(Held):
    """A rank's part in this process alone, which has got it from another host."""

    def __init__(self, store: "Folder | Held", rank: int, blobs: "dict[str, bytes]") -> None:
        super().__init__(rank)
        self.of_rows, self._blobs = getattr(store, "of_rows", ""), blobs


Store = typing.Union[Folder, Held]


def rows_name(number: int) -> str:
    """How the files of rows of a commit begin."""
    return f"commit-{number}.rows"


def commits_of_rows(manifest: str) -> "set[int]":
    """The commits whose files of rows a manifest names."""
    found = [_ROWS.fullmatch(file["name"]) for file in json.loads(manifest)["files"]]
    return {int(match[1]) for match in found if match}


def _boot_id() -> str:
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return os.uname().nodename


def head_text(head: Head) -> bytes:
    return json.dumps(dataclasses.asdict(head)).encode()


def parse_head(text: bytes) -> "Head | None":
    try:
        fields = json.loads(text)
        return Head(**{**fields, "blobs": [tuple(blob) for blob in fields["blobs"]]})
    except (ValueError, TypeError, KeyError):
        return None


def open_file(path: "str | os.PathLike[str]", mode: "typing.Literal['rb', 'ab']" = "rb") -> typing.BinaryIO:
    """A FIFO, for which open() would wait, is an OSError."""
    def opener(name: str, flags: int) -> int:
        fd = os.open(name, flags | os.O_NONBLOCK, 0o666)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "is not a regular file", name)
        return fd

    return open(path, mode, opener=opener)


def _read_head(path: pathlib.Path) -> "Head | None":
    """None: it is not whole."""
    try:
        with open_file(path) as f:
            if f.read(len(_MAGIC)) != _MAGIC:
                return None
            length = int.from_bytes(f.read(8), "little")
            wanted = f.read(_DIGEST).hex()
            text = f.read(min(length, os.fstat(f.fileno()).st_size))
    except OSError:
        return None
    return parse_head(text) if digest(text) == wanted else None


def _places_of(path: pathlib.Path, head: Head) -> "typing.Iterator[tuple[str, int, int, str]]":
    """(name, where it begins, bytes, digest) of the file's blobs."""
    with open_file(path) as f:
        f.seek(len(_MAGIC))
        at = len(_MAGIC) + 8 + _DIGEST + int.from_bytes(f.read(8), "little")
    for name, length, wanted, _ in head.own():
        yield name, at, length, wanted
        at += length


def _read_blob(path: pathlib.Path, head: Head, wanted: str) -> bytes:
    [(at, length)] = [(at, length) for name, at, length, _ in _places_of(path, head) if name == wanted]
    with open_file(path) as f:
        f.seek(at)
        return f.read(length)


def _is_whole(path: pathlib.Path, head: Head) -> bool:
    """Whether its blobs have their digests."""
    with open_file(path) as f:
        for _, at, length, wanted in _places_of(path, head):
            f.seek(at)
            summed = hashlib.sha256()
            while length:
                piece = f.read(min(length, _PIECE))
                if not piece:
                    return False
                summed.update(piece)
                length -= len(piece)
            if summed.hexdigest() != wanted:
                return False
    return True
