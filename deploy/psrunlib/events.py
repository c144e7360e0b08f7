"""What has happened to a job besides training, as its parts say: for the summary and the screen."""
import re

# Worker 0's in an elastic job, each time that it begins or goes on.
WORKERS_LINE = re.compile(r"^\s*[\d.]+ \S+ INFO  workers n=(?P<n>\d+) ")
# A member's, when a lost connection to a server or to the coordinator is there again: how many
# messages without an answer it has sent again.
MENDED_LINE = re.compile(r"^\s*[\d.]+ \S+ WARN  connection-mended .* repeated=(?P<n>\d+)$")


class Events:
    def __init__(self):
        self.mended, self.repeated = 0, 0
        self.joins, self.leaves = 0, 0
        self.without = 0  # deaths of parts that the job has gone on without
        self.workers = None  # of an elastic job

    def line(self, part, line):
        mended = MENDED_LINE.match(line)
        if mended:
            self.mended += 1
            self.repeated += int(mended["n"])
        found = WORKERS_LINE.match(line) if part.name == "worker 0" else None
        if not found:
            return
        now = int(found["n"])
        before = now if self.workers is None else self.workers
        self.workers = now
        self.joins += max(0, now - before)
        self.leaves += max(0, before - now)

    def facts(self, restarts):
        """restarts: restarts.Restarts, or None."""
        again = restarts.deaths if restarts else []
        return {"deaths": len(again) + self.without, "restarts": len(again),
                "steps_lost": restarts.steps_lost if restarts else 0,
                "seconds_lost": round(restarts.seconds_lost, 3) if restarts else 0,
                "mended_connections": self.mended, "repeated_messages": self.repeated,
                "joins": self.joins, "leaves": self.leaves}
