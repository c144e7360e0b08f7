#!/usr/bin/env python3
"""The page in a real browser (headless Chromium), and a job watched by a real Prometheus. Each is
skipped where the program is not installed."""
import json
import re
import shutil
import subprocess
import time
import unittest
import urllib.parse
import urllib.request
from pathlib import Path

from jobs import ROOT, free_port
from test_watching import Watched

PAGE = ROOT / "common/monitor/page.html"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


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
        outside = set(re.findall(r"https?://[^\s\"'`)]+", page)) - {"http://www.w3.org/2000/svg", "http://${m.address}/metrics"}
        self.assertEqual(outside, set())
        self.assertNotRegex(page, r"<(script|img|iframe|link)[^>]+(src|href)=\"(?!data:)")


@unittest.skipUnless(BROWSER, "no chromium (Debian: chromium)")
class Browser(Watched):
    def test_page(self):
        port = self.start("-s", "1", "-w", "2")
        for width in (390, 1280):
            for dark in (False, True):
                with self.subTest(width=width, dark=dark):
                    self.check(port, width, dark)

    def check(self, port, width, dark):
        argv = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},1000",
                f"--user-data-dir={self.path('browser')}", "--enable-logging=stderr", "--virtual-time-budget=4000",
                *["--blink-settings=preferredColorScheme=0"] * dark, "--dump-dom", f"http://localhost:{port}/"]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual([line for line in done.stderr.splitlines() if "CONSOLE" in line], [])
        for part in ('<th scope="row">server 0</th>', '<th scope="row">worker 1</th>', 'class="state good"',
                     'aria-label="Loss by step', "<polyline"):
            self.assertIn(part, done.stdout)
        self.assertRegex(done.stdout, r'aria-label="compute [0-9.]+ ms')


@unittest.skipUnless(shutil.which("prometheus"), "no prometheus (Debian: prometheus)")
class Prometheus(Watched):
    def test_it_finds_all_members(self):
        page, port = self.start("-s", "1", "-w", "2"), free_port()
        config = (ROOT / "deploy/grafana/prometheus.yaml").read_text(encoding="utf-8")
        config = config.replace(":9100", f":{page}").replace(": 5s", ": 1s")
        Path(self.path("prometheus.yaml")).write_text(config, encoding="utf-8")
        with open(self.path("prometheus.log"), "w", encoding="utf-8") as log:
            server = subprocess.Popen(
                ["prometheus", f"--config.file={self.path('prometheus.yaml')}", f"--storage.tsdb.path={self.path('db')}",
                 f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        for query in self.queries():
            self.check(port, query)

    def queries(self):
        """The dashboard's, of this job."""
        dashboard = json.loads((ROOT / "deploy/grafana/pstrain.json").read_text(encoding="utf-8"))
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield target["expr"].replace("$job", "digits-basicnet").replace("$__rate_interval", "10s")

    def check(self, port, query):
        """It has a value for every member that it is about."""
        deadline, results = time.monotonic() + 60, []
        wanted = 2 if 'role="worker"' in query and "rank=" not in query else 3 if "role=" not in query else 1
        wanted = 1 if query.startswith("sum(") else wanted
        while time.monotonic() < deadline and len(results) < wanted:
            time.sleep(0.2)
            url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    results = json.load(answer)["data"]["result"]
            except OSError:
                pass
        self.assertEqual(len(results), wanted, query)


if __name__ == "__main__":
    unittest.main()
