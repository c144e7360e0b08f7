"""Sums of float32 arrays by the servers, several at the same time."""
from __future__ import annotations

import queue
import threading
import typing

from . import errors
from ._session import Session, own_thread

BYTES = 64 << 20  # on the way at once


class Reducer:
    """Opens the session for sums. Every rank makes it at the same point of its program."""

    def __init__(self, session: Session, settings: "list[str]") -> None:
        session.open_reducer(BYTES, settings)
        self._session = session
        self._begun: "queue.SimpleQueue[typing.Any]" = queue.SimpleQueue()
        self._order = threading.Lock()  # tickets are queued as they are drawn
        self._thread = own_thread("sums", self._run)

    def begin(self, address: int, n: int,
              done: "typing.Callable[[BaseException | None], None]") -> None:
        """The n float32 at address become the sum over all ranks, in rank order. They must
        stay there until done is called, in another thread, with the exception or None. All
        ranks call it in the same order with the same n."""
        with self._order:
            ticket = self._session.reduce_begin(address, n)
            self._begun.put((ticket, done))

    def _run(self) -> None:
        while True:
            ticket, done = self._begun.get()
            if done is None:
                return
            error: "BaseException | None" = None
            try:
                self._session.reduce_end(ticket)
            except errors.Error as raised:
                error = raised
            done(error)
            done = error = None

    def end(self) -> None:
        """Waits until every sum that was begun has ended or failed."""
        self._begun.put((0, None))
        self._thread.join()
