"""A line of our programs' log (common/base/log.h): "12.345 worker/0 INFO  push step=3 chunk=7". It is for
people: psrun shows it, and decides by events (events.py)."""
import re
from dataclasses import dataclass

LINE = re.compile(r"^\s*[\d.]+ \S+ (?P<level>DEBUG|INFO |WARN |ERROR) (?P<event>\S+) ?(?P<rest>.*)$")
FIELD = re.compile(r'(?:^| )(?P<key>[a-z_]+)=(?:"(?P<quoted>[^"]*)"|(?P<word>\S*))')
REASON = re.compile(r' reason="(?P<text>.*?)"?$')


@dataclass
class LogLine:
    level: str
    event: str
    fields: dict
    rest: str  # everything behind the event


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


def why(output, otherwise):
    """Why a program has failed, from its output."""
    last = (output.strip().splitlines() or [otherwise])[-1]
    said = parse(last)
    if not said or said.level != "ERROR":
        return last
    reason = REASON.search(said.rest)
    return reason["text"] if reason else said.rest
