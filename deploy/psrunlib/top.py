"""psrun --top: a terminal view of a running job, from the /status.json of its page."""
import curses
import http.client
import json
import os
import re
import sys
import textwrap
import time
import urllib.request

from . import jobfile, report
from .errors import JobError
from .out import is_in_use
from .regular_file import open_text
from .screen import Screen

EVERY_S = 1.0
ANSWER_S = 5.0
ANSWER_MOST = 64 << 20  # bytes
BAR_CELLS = 24
PARTS = {"worker": (("compute", "#"), ("load", "."), ("wait", "-")), "server": (("sum", "+"), ("apply", "#"))}


# ---- where the job is ----

def find(where):
    """The URL of status.json: of a port, of host:port, of a page's URL, or of a run's folder."""
    if os.path.isdir(where):
        return f"http://{page_of_run(where)}/status.json"
    if re.fullmatch("[0-9]{1,5}", where):
        where = f"127.0.0.1:{where}"
    if not re.match("https?://", where):
        where = f"http://{where}"
    if not re.fullmatch(r"https?://(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:[0-9]{1,5})?(/.*)?", where):
        raise JobError(f"--top {where}: give the page's address (127.0.0.1:9100), its port, or the run's folder")
    return re.sub("^(https?://[^/]*).*$", r"\1/status.json", where)


def page_of_run(folder):
    """Its address, from here."""
    try:
        host, port = jobfile.read(folder)["page"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise JobError(f"--top {folder}: cannot read {os.path.join(folder, jobfile.JOB_FILE)}: {error}") from error
    if not port:
        raise JobError(f"--top {folder}: that run has no page: start it with metrics.port=9100, or another port")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # all addresses
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read(url):
    # No proxy: it cannot know this host's own addresses.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=ANSWER_S) as answer:
            status = json.loads(answer.read(ANSWER_MOST))
        lines(status, 80)  # that it has the form of a status
        return status
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error or type(error).__name__
        raise JobError(f"no answer from {url}: {plain(reason)}: is the job running, with metrics.port? "
                       "If it has ended, give the folder of its run") from error
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise JobError(f"{url} is not the page of a job") from error


# ---- a run that is over ----

def show_ended(folder):
    """The figures of the summary; without one, those of the last lines of metrics.jsonl."""
    screen, path = Screen(), os.path.join(folder, "summary.json")
    screen.waits = True
    if not is_older(path, os.path.join(folder, jobfile.JOB_FILE)):
        how = "was interrupted" if report.read_summary(folder).get("interrupted") else "has finished"
        screen.say(f"psrun: {folder} {how}")
        try:
            report.show(folder, screen)
        except (LookupError, TypeError, ValueError) as error:
            raise JobError(f"{path}: not the summary of a job") from error
        return 0
    last = {}
    try:
        with open_text(os.path.join(folder, "metrics.jsonl")) as f:
            for line in f:
                last.update(json.loads(line))
    except (OSError, ValueError, TypeError):
        pass  # it has none, its last line is cut short, or it is another program's
    if not last:
        raise JobError(f"--top {folder}: no job is running there, and there are no figures of one")
    screen.say(f"psrun: {folder} is not running, and did not finish; its last figures:")
    for name in [n for n in last if n not in ("epoch", "best", "seconds")]:
        screen.say(f"  {name:<19} {last_figure(last[name])}", indent=22)
    return 0


def last_figure(value):
    return count(value) if isinstance(value, int) else report.figure(value) if known(value) else "-"


def is_older(path, other):
    """Whether a file is not there, or from an earlier start than the other."""
    try:
        return os.path.getmtime(path) < os.path.getmtime(other)
    except OSError:
        return not os.path.exists(path)


# ---- what is shown ----

def known(value):
    return isinstance(value, (int, float))


def count(value):
    return f"{value:,.0f}" if known(value) else "-"


def fixed(value, digits):
    return f"{value:,.{digits}f}" if known(value) else "-"


def short(value):
    return f"{value:.3g}" if known(value) else "-"


def size(value):
    if not known(value):
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000


def span(seconds):
    if not known(seconds) or seconds > 360000:
        return "-:--"
    s = round(seconds)
    return f"{s // 3600}:{s // 60 % 60:02}:{s % 60:02}" if s >= 3600 else f"{s // 60}:{s % 60:02}"


def plain(text):
    """Without anything that a terminal could take for a command."""
    return "".join(c if c.isprintable() else "?" for c in str(text).strip())


def progress(job, width):
    if not known(job["steps"]):
        return ""  # the workers are a program, which does not tell
    share = job["step"] / job["steps"] if known(job["step"]) and job["steps"] else 0
    cells = max(10, min(width - 60, 60))
    bar = "#" * int(share * cells)
    return f"[{bar:<{cells}}] {share:4.0%}  step {count(job['step'])}/{count(job['steps'])}  {span(job['seconds_left'])} left"


def split_bar(member, most, cells):
    """Characters in the ratio of the parts' times."""
    text = ""
    for part, character in PARTS[member["role"]]:
        ms = member["step_ms"][part] or 0
        text += character * round(ms / most * cells)
    return f"{text[:cells]:<{cells}}"


def step_ms(member):
    return sum(member["step_ms"][part] or 0 for part, _ in PARTS[member["role"]])


def heard(member):
    silent = member["silent_seconds"]
    if member.get("away"):
        return "away"
    return "not yet" if not known(silent) else "now" if silent < 2 else f"{span(silent)} ago"


COLUMNS = (  # title, to which side, text of a member; the bar stands before "sent/s"
    ("member", "<", lambda m: f"{m['role']} {m['rank']}"),
    ("host", "<", lambda m: plain(m["host"])[:14]),
    ("heard", "<", heard),
    ("step", ">", lambda m: count(m["values"].get("step"))),
    ("step ms", ">", lambda m: fixed(step_ms(m) or None, 2)),
    ("sent/s", ">", lambda m: size(m["sent_per_second"])),
    ("recv/s", ">", lambda m: size(m["received_per_second"])),
    ("memory", ">", lambda m: size(m["values"].get("rss_bytes"))),
    ("cpu", ">", lambda m: fixed(m["cpu"], 2)),
    ("again", ">", lambda m: count((m["values"].get("restarts") or 0) + (m["values"].get("rejoins") or 0))))
BAR_BEFORE, BAR_TITLE = "sent/s", "its parts"
LEFT_OUT = ("again", "cpu", "host", "memory", "heard", "recv/s")  # in this order, where the terminal is narrow


def table(members, width):
    """The head, and a line for each member. The bar takes what the columns leave."""
    columns = {title: [title, *map(text, members)] for title, _, text in COLUMNS}
    widths = {title: max(map(len, column)) for title, column in columns.items()}
    free = width - 1 - sum(widths.values()) - len(columns)
    for title in LEFT_OUT:
        if free < len(BAR_TITLE):
            free += widths[title] + 1
            del columns[title]
    cells = max(len(BAR_TITLE), min(BAR_CELLS, free))
    most = max([step_ms(m) for m in members] + [1e-9])
    bars = [f"{BAR_TITLE:<{cells}}"] + [split_bar(m, most, cells) for m in members]
    sides = {title: side for title, side, _ in COLUMNS}
    shown = []
    for title, column in columns.items():
        shown += [bars] * (title == BAR_BEFORE)
        shown.append([f"{cell:{sides[title]}{widths[title]}}" for cell in column])
    return [" ".join(row) for row in zip(*shown)]


TABLE_COLUMNS = (
    ("table", "<", lambda t: plain(t["name"])[:32]),
    ("rows", ">", lambda t: count(t["rows"])),
    ("memory", ">", lambda t: size(t["bytes"])),
    ("ids stepped", ">", lambda t: count(t["stepped"])),
    ("prefetch hits", ">", lambda t: f"{t['ready'] / t['ahead']:.1%}" if t["ahead"] else "-"),
    ("dropped", ">", lambda t: count(t["dropped"])))


def embedding_tables(tables):
    """The head, and a line for each embedding table; nothing where there is none."""
    columns = [[title, *map(text, tables)] for title, _, text in TABLE_COLUMNS]
    widths = [max(map(len, column)) for column in columns]
    rows = [" ".join(f"{cell:{side}{width}}" for cell, width, (_, side, _) in zip(row, widths, TABLE_COLUMNS))
            for row in zip(*columns)]
    return [("", ""), (rows[0], "head"), *((row, "") for row in rows[1:])] if tables else []


def figures(job):
    """Of the job; those of its steps are known where the workers are our own."""
    if known(job["epochs"]):
        quality = job["quality"]
        yield f"epoch {count((job['epoch'] or 0) + 1)}/{count(job['epochs'])}"
        yield f"loss {short(job['loss'])}"
        yield f"{count(job['samples_per_second'])} samples/s"
        yield f"test {quality['name']} {fixed(quality['value'], 4)}"
    yield f"restarts {count(job['restarts'])}"


def lines(status, width):
    """[(text, style)]: style is "", "title", "head" or "bad"."""
    job, members = status["job"], status["members"]
    out = [(text, style) for text, style in ((f"{plain(job['name'])}  {plain(job['state'])}", "title"), (progress(job, width), ""),
                                             ("  ".join(figures(job)), "")) if text]
    if job["reason"]:
        out.append((plain(job["reason"]), "bad"))
    waits = status["waits_for"]
    out += [(f"everybody waits for: {plain(waits['text'])}", "bad" if waits["who"] in ("worker", "silent") else ""), ("", "")]
    out = [(line, style) for text, style in out for line in textwrap.wrap(text, max(width - 1, 10), subsequent_indent="  ") or [""]]
    head, *rows = table(members, width)
    out.append((head, "head"))
    for m, row in zip(members, rows):
        silent = known(m["silent_seconds"]) and m["silent_seconds"] >= 2
        out.append((row, "bad" if silent else ""))
    return out + [("", ""), ("workers: # compute, . wait for data, - for the exchange", ""),
                  ("servers: + sum, # apply (or both in one pass)", ""), *embedding_tables(status["tables"])]


# ---- the terminal ----

class View:
    """Until `q`; of a run's folder until the run ends."""

    def __init__(self, window, url, folder):
        self.window, self.url, self.folder = window, url, folder
        self.top = 0  # the first line that is shown
        self.text, self.problem = [], ""

    def update(self):
        try:
            self.text, self.problem = lines(read(self.url), self.window.getmaxyx()[1]), ""
        except JobError:  # it has answered before
            self.problem = "the page is gone: last figures"

    def draw(self):
        height, width = self.window.getmaxyx()
        styles = {"": 0, "title": curses.A_BOLD, "head": curses.A_REVERSE, "bad": curses.A_BOLD | self.red}
        self.top = max(0, min(self.top, len(self.text) - (height - 1)))
        self.window.erase()
        for y, (text, style) in enumerate(self.text[self.top:self.top + height - 1]):
            self._put(y, text, styles[style], width)
        self._put(height - 1, "q: quit, arrows: scroll" + f"; {self.problem}" * bool(self.problem),
                  styles["bad" if self.problem else ""], width)
        self.window.refresh()

    def _put(self, y, text, style, width):
        try:
            shown = text.encode(self.window.encoding, "replace").decode(self.window.encoding)
            self.window.addnstr(y, 0, shown, max(width - 1, 1), style)
        except curses.error:
            pass  # the terminal has become smaller

    def run(self):
        curses.use_default_colors()
        self.red = curses.color_pair(0)
        if curses.has_colors():
            curses.init_pair(1, curses.COLOR_RED, -1)
            self.red = curses.color_pair(1)
        try:
            curses.curs_set(0)
        except curses.error:
            pass  # a terminal that cannot hide it
        self.window.timeout(100)
        due = 0.0
        while True:
            if time.monotonic() >= due:
                self.update()
                due = time.monotonic() + EVERY_S
                if self.problem and self.folder and not is_in_use(self.folder):
                    return
            self.draw()
            key = self.window.getch()
            if key in (ord("q"), 27):
                return
            self.top += {curses.KEY_DOWN: 1, curses.KEY_UP: -1, curses.KEY_NPAGE: 10, curses.KEY_PPAGE: -10}.get(key, 0)


def top(where):
    """Shows the job until `q`; once, as plain text, where the output is not a terminal. Of a run that is over, its
    last figures."""
    folder = where if os.path.isdir(where) else None
    if folder and not is_in_use(folder):
        return show_ended(folder)
    url = find(where)
    status = read(url)
    if not sys.stdout.isatty():
        for text, _ in lines(status, 120):
            print(text.rstrip())
        return 0
    os.environ.setdefault("ESCDELAY", "25")
    try:
        curses.wrapper(lambda window: View(window, url, folder).run())
    except curses.error as error:
        raise JobError(f"--top: this terminal ({os.environ.get('TERM', 'no TERM')}) cannot show it: {error}; "
                       "its text: psrun --top ... | cat") from error
    return show_ended(folder) if folder and not is_in_use(folder) else 0
