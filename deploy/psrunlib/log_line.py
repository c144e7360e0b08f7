"""A line of our programs' log (common/base/log.h): "12.345 worker/0 INFO  push step=3 chunk=7"."""
import re
from dataclasses import dataclass

LINE = re.compile(r"^\s*[\d.]+ \S+ (?P<level>DEBUG|INFO |WARN |ERROR) (?P<event>\S+) ?(?P<rest>.*)$")
FIELD = re.compile(r'(?:^| )(?P<key>[a-z_]+)=(?:"(?P<quoted>[^"]*)"|(?P<word>\S*))')
REASON = re.compile(r' reason="(?P<text>.*?)"?$')
RANKS = re.compile(r"(?P<role>server|worker)s? (?P<ranks>\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)")


@dataclass
class LogLine:
    level: str
    event: str
    fields: dict
    rest: str  # everything behind the event


@dataclass
class Failure:
    text: str  # for people
    kind: str = ""  # as in common/base/err.h; "": not known
    passing: bool = True  # it may be gone when the job is tried again


def parse(line):
    """None: one of our programs has not logged it. Of two fields with the same key the first counts:
    text that a peer has chosen stands behind the fields that psrun reads."""
    found = LINE.match(line)
    if not found:
        return None
    fields = {}
    for field in FIELD.finditer(found["rest"]):
        fields.setdefault(field["key"], field["word"] if field["quoted"] is None else field["quoted"])
    return LogLine(found["level"].strip(), found["event"], fields, found["rest"])


def failure(said):
    """The Failure that a LogLine tells of (ps_log_failure), or None."""
    if said.level != "ERROR":
        return None
    reason = REASON.search(said.rest)
    kind = said.fields.get("kind")
    if "passing" not in said.fields or not kind or not reason:
        return Failure(said.rest)
    return Failure(f"{kind}: {reason['text']}", kind, said.fields["passing"] == "true")


def why(output, otherwise):
    """Why a program has failed, from its output."""
    last = (output.strip().splitlines() or [otherwise])[-1]
    said = parse(last)
    error = said and failure(said)
    return error.text if error else last


def part_names(text):
    """"servers 1, 3-4 of 8, worker 0" → server 1, server 3, server 4, worker 0."""
    for role in RANKS.finditer(text):
        for span in role["ranks"].split(", "):
            first, _, last = span.partition("-")
            yield from (f"{role['role']} {rank}" for rank in range(int(first), int(last or first) + 1))
