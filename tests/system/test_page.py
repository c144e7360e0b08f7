#!/usr/bin/env python3
"""The page in a real browser (headless Chromium), and a job watched by a real Prometheus. Each is
skipped where the program is not installed."""
import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import unittest
import urllib.parse
import urllib.request
from pathlib import Path

from browser import BROWSER, Browser
from jobs import ROOT, free_port
from test_watching import Watched

PAGE = ROOT / "coordinator/monitor/page.html"


def luminance(colour):
    """WCAG 2.2, relative luminance."""
    if len(colour) == 4:
        colour = "#" + "".join(2 * c for c in colour[1:])
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(f * v for f, v in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


class Colours(unittest.TestCase):
    def test_contrast(self):
        schemes = [dict(re.findall(r"--(\w+): (#\w+);", block))
                   for block in re.findall(r":root \{(.*?)\}", PAGE.read_text(encoding="utf-8"), re.S)]
        self.assertEqual(len(schemes), 2)
        for scheme in schemes:
            for behind in ("page", "card"):
                for text in ("text", "faint", "accent", "good", "bad", "odd"):
                    self.assertGreaterEqual(contrast(scheme[text], scheme[behind]), 4.5, (text, behind))
            for bar in ("compute", "load", "wait", "sum", "apply"):
                self.assertGreaterEqual(contrast(scheme[bar], scheme["card"]), 3, bar)

    def test_nothing_from_outside(self):
        page = PAGE.read_text(encoding="utf-8")
        outside = set(re.findall(r"https?://[^\s\"'`)]+", page)) - {
            "http://www.w3.org/2000/svg", "http://${m.address}/metrics"}
        self.assertEqual(outside, set())
        self.assertNotRegex(page, r"<(script|img|iframe|link)[^>]+(src|href)=\"(?!data:)")


FOCUSABLE = "'a[href], button, input:not([disabled]), summary, [tabindex=\"0\"]'"
# What has the focus: its place among all elements that can have it, and whether a user sees it.
FOCUS = """(() => {
  const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
  const all = [...document.querySelectorAll(%s)].filter(x => x.checkVisibility());
  return {place: all.indexOf(e), of: all.length, what: e.outerHTML.slice(0, 80),
    seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 && \
box.bottom > 0 && box.top < innerHeight};
})()""" % FOCUSABLE
# [[text, colour, background]] of all text, as it is drawn.
WRITTEN = """(() => {
  const found = {}, walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const clear = c => c === "rgba(0, 0, 0, 0)" || c === "transparent";
  for (let n = walk.nextNode(); n; n = walk.nextNode()) {
    const e = n.parentElement;
    if (!n.data.trim() || /SCRIPT|STYLE/.test(e.tagName) || !e.checkVisibility()) continue;
    let at = e;
    while (at && clear(getComputedStyle(at).backgroundColor)) at = at.parentElement;
    const style = getComputedStyle(e), row = [n.data.trim().slice(0, 30),
      e instanceof SVGElement ? style.fill : style.color, getComputedStyle(at || document.body).backgroundColor];
    found[row[1] + row[2]] = row;
  }
  return Object.values(found);
})()"""


def hexadecimal(colour):
    return "#" + "".join(f"{int(n):02x}" for n in re.fullmatch(r"rgb\((\d+), (\d+), (\d+)\)", colour).groups())


@unittest.skipUnless(BROWSER, "no chromium (Debian: chromium)")
class Page(Watched):
    """PS_PAGE_PICTURES names a folder for pictures of it."""

    def test_page(self):
        url = f"http://localhost:{self.start('-s', '1', '-w', '2')}/"
        browser = Browser(self.path("browser"))
        self.addCleanup(browser.close)
        for width in (390, 1280):
            for dark in (False, True):
                with self.subTest(width=width, dark=dark):
                    browser.look_at(url, width, 900, dark)
                    browser.wait_for("document.querySelectorAll('#members tr').length === 3 && "
                                     "!document.getElementById('look').disabled")
                    self.check_content(browser)
                    self.check_keyboard(browser)
                    self.check_sight(browser, width)
                    self.keep_picture(browser, width, dark)
        self.assertEqual(browser.faults, [])

    def test_tables(self):
        """A row of each embedding table, with the figures of all servers; nothing is cut off."""
        config = (ROOT / "configs/criteo-dlrm.yaml", "data.samples=20000", "data.test_samples=100", "train.epochs=100000")
        port = self.start("-s", "2", "-w", "2", config=config)
        browser = Browser(self.path("browser"))
        self.addCleanup(browser.close)
        for width in (390, 1280):
            browser.look_at(f"http://localhost:{port}/", width, 900, False)
            browser.wait_for("[...document.querySelectorAll('#tables tr')].filter("
                             "r => /[1-9]/.test(r.cells[3]?.textContent)).length === 26")
            cells = browser.run("[...document.querySelector('#tables tr').cells].map(c => c.textContent)")
            browser.wait_for("/^Test AUC0\\.\\d{4}$/.test(document.getElementById('quality').parentNode.textContent)")
            browser.wait_for("document.getElementById('part-name').textContent === 'AUC' && "
                             "document.querySelector('#part-curve circle') !== null")
            self.assertRegex(" | ".join(cells), r"^pairs\.\S*C1 \| [1-9][0-9,]* \| [1-9]\S* [kM]B \| [1-9]\S* k? ?\| – \| 0$")
            self.check_sight(browser, width)
            self.keep_picture(browser, f"tables-{width}", False)
        self.assertEqual(browser.faults, [])

    def check_content(self, browser):
        text = browser.run("document.documentElement.outerHTML")
        for part in ('<th scope="row">server 0</th>', '<th scope="row">worker 1</th>', 'class="state good"',
                     'aria-label="Loss by step', "<polyline"):
            self.assertIn(part, text)
        self.assertRegex(text, r'aria-label="compute [0-9.]+ ms')
        unnamed = browser.run(
            """[...document.querySelectorAll('a, button, input, [role=img], [role=region], progress')].filter(
            e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length ||
                   e.getAttribute('aria-labelledby'))).map(e => e.outerHTML)""")
        self.assertEqual(unnamed, [])

    def tab_through(self, browser):
        """The Tab key reaches every control once, in their order, and the focus is visible on each."""
        self.focus(browser, "#pause")  # the first
        places = []
        while len(places) < 100:
            focus = browser.run(FOCUS)
            if focus["place"] < 0 or focus["place"] in places:
                break
            self.assertTrue(focus["seen"], focus["what"])
            places.append(focus["place"])
            browser.press("Tab")
        self.assertEqual(places, list(range(len(places))))
        self.assertEqual(len(places), browser.run(FOCUS)["of"])
        return len(places)

    def check_keyboard(self, browser):
        closed = self.tab_through(browser)
        self.focus(browser, "#pause")
        browser.press(" ")
        self.assertEqual(browser.run("document.activeElement.ariaPressed"), "true")
        self.focus(browser, "#look")
        browser.press("Home")
        first = browser.run("document.getElementById('look-text').textContent")
        browser.press("End")
        self.assertNotEqual(browser.run("document.getElementById('look-text').textContent"), first)
        self.assertEqual(browser.run("document.getElementById('look').ariaValueText"),
                         browser.run("document.getElementById('look-text').textContent"))
        self.focus(browser, "summary")
        browser.press("Enter")
        browser.wait_for("document.querySelector('details').open && "
                         "document.querySelectorAll('#figures tr').length > 10")
        self.assertEqual(self.tab_through(browser), closed + 1)
        self.focus(browser, "#pause")
        browser.press("Enter")
        self.assertEqual(browser.run("document.activeElement.ariaPressed"), "false")

    def focus(self, browser, selector):
        """Moves the focus with the Tab key alone."""
        for _ in range(100):
            if browser.run(f"document.activeElement.matches('{selector}')"):
                return
            browser.press("Tab")
        self.fail(f"no Tab leads to {selector}")

    def check_sight(self, browser, width):
        self.assertLessEqual(browser.run("document.documentElement.scrollWidth"), width, "it is to be moved sideways")
        for text, colour, behind in browser.run(WRITTEN):
            self.assertGreaterEqual(contrast(hexadecimal(colour), hexadecimal(behind)), 4.5, text)

    def keep_picture(self, browser, width, dark):
        if folder := os.environ.get("PS_PAGE_PICTURES"):
            browser.run("document.querySelector('details').open = false, document.activeElement.blur(), "
                        "document.querySelectorAll('.scroll').forEach(e => e.scrollLeft = 0), scrollTo(0, 0)")
            time.sleep(2)  # until it is drawn
            browser.picture(Path(folder, f"page-{width}-{'dark' if dark else 'light'}.png"))


@unittest.skipUnless(shutil.which("prometheus"), "no prometheus (Debian: prometheus)")
class Prometheus(Watched):
    def test_it_finds_all_members(self):
        page, port = self.start("-s", "1", "-w", "2"), free_port()
        config = (ROOT / "deploy/grafana/prometheus.yaml").read_text(encoding="utf-8")
        config = config.replace(":9100", f":{page}").replace(": 5s", ": 1s")
        Path(self.path("prometheus.yaml")).write_text(config, encoding="utf-8")
        with open(self.path("prometheus.log"), "w", encoding="utf-8") as log:
            server = subprocess.Popen(
                ["prometheus", f"--config.file={self.path('prometheus.yaml')}",
                 f"--storage.tsdb.path={self.path('db')}",
                 f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        for query in self.queries():
            self.check(port, query)

    def queries(self):
        """The dashboard's queries for this job."""
        dashboard = json.loads((ROOT / "deploy/grafana/pstrain.json").read_text(encoding="utf-8"))
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield target["expr"].replace("$job", "digits").replace("$__rate_interval", "10s")

    def check(self, port, query):
        """Checks that the query has a value for each of its members."""
        deadline, results = time.monotonic() + 60, []
        wanted = 2 if 'role="worker"' in query and "rank=" not in query else 3 if "role=" not in query else 1
        wanted = 1 if query.startswith("sum(") else wanted
        while time.monotonic() < deadline and len(results) < wanted:
            time.sleep(0.2)
            url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(url, timeout=10) as answer:
                    results = json.load(answer)["data"]["result"]
        self.assertEqual(len(results), wanted, query)


if __name__ == "__main__":
    unittest.main()
