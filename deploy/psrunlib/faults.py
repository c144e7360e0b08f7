"""One fault, one message. What the parts say of a fault is held back, because psrun itself names the part
that failed, and the reason: a line of our programs' logs, a traceback of a Python program that others have ended.
If psrun does not, what the first part has said is shown. The logs keep all lines."""

HELD_S = 5.0  # for so long what the parts say is of the same fault
MOST_WARNED = 1000  # warnings that are known again; those of lost connections have times, and each is another one
OF_ALL = ("rejoin", "unjoined", "away", "abort")  # what every member, or the coordinator, says of the same fault


def is_of_a_fault(said):
    """Whether a LogLine says why a part, or the job, has ended."""
    return said is not None and (said.level == "ERROR" and "passing" in said.fields or said.event in OF_ALL)


class Faults:
    """Stands between the parts and the screen."""

    def __init__(self, screen):
        self.screen = screen
        self.say, self.progress = screen.say, screen.progress
        self.now = 0.0
        self.held = None  # (since when, a list: part, line, what parse makes of it)
        self.named_at = -HELD_S
        self.warned = set()

    def line(self, part, line, said):
        if self.screen.verbose or not is_of_a_fault(said):
            if self._is_new(said):
                self.screen.line(part, line, said)
        else:
            self._hold([(part, line, said)])

    def traceback(self, part, lines):
        """Of a Python program that has ended because of another part."""
        shown = [(part, line, None) for line in lines]
        if self.screen.verbose:
            self._show(shown)
        elif self.screen.shows(part, None):
            self._hold(shown)

    def _hold(self, lines):
        if not self.held and self.now - self.named_at >= HELD_S:
            self.held = (self.now, lines)

    def _show(self, lines):
        for line in lines:
            self.screen.line(*line)

    def _is_new(self, said):
        """False for a warning that another part, or the same one when it joined again, has given."""
        warning = (said.event, said.rest) if said and said.level == "WARN" else None
        if not warning or self.screen.verbose:
            return True
        is_new = warning not in self.warned
        if len(self.warned) == MOST_WARNED:
            self.warned.clear()
        self.warned.add(warning)
        return is_new

    def named(self):
        """psrun has named the part that failed."""
        self.held, self.named_at = None, self.now

    def tick(self, now):
        self.now = now
        if self.held and now - self.held[0] >= HELD_S:
            self.show()

    def show(self):
        if self.held:
            self._show(self.held[1])
            self.held = None
