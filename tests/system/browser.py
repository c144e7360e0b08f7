"""A headless Chromium, by its own protocol over a pipe (chromedevtools.github.io/devtools-protocol)."""
import base64
import json
import os
import select
import shutil
import subprocess
import time

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE_S = 60
KEYS = {"Tab": 9, "Enter": 13, "End": 35, "Home": 36, "ArrowRight": 39, " ": 32}


class Browser:
    """One page. faults: the errors and warnings of its console and its log."""

    def __init__(self, profile):
        self.faults, self.sent, self.rest, self.session = [], 0, b"", None
        down, self.down = os.pipe()
        self.up, up = os.pipe()
        # The protocol is on descriptors 3 and 4.
        argv = ["sh", "-c", f'exec "$@" 3<&{down} 4>&{up}', "sh", BROWSER, "--headless", "--no-sandbox",
                "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(argv, pass_fds=(down, up), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(down)
        os.close(up)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        self.process.terminate()
        self.process.wait()
        os.close(self.down)
        os.close(self.up)

    def call(self, method, **params):
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.down, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            said = self._read(end)
            self._note(said)
            if said.get("id") == self.sent:
                assert "error" not in said, (method, said["error"])
                return said["result"]
        raise AssertionError(f"{method}: no answer")

    def _read(self, end):
        while b"\0" not in self.rest:
            if not select.select([self.up], [], [], max(0, end - time.monotonic()))[0]:
                return {}
            some = os.read(self.up, 1 << 20)
            assert some, "the browser has ended"
            self.rest += some
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def _note(self, said):
        what, params = said.get("method"), said.get("params", {})
        if what == "Runtime.exceptionThrown":
            self.faults.append(params["exceptionDetails"])
        elif what == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.faults.append(params["args"])
        elif what == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.faults.append(params["entry"])

    def look_at(self, url, width, height, dark):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=url)

    def run(self, script):
        """Returns the value of a JavaScript expression."""
        said = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def wait_for(self, script):
        end = time.monotonic() + PATIENCE_S
        while not self.run(script):
            assert time.monotonic() < end, script
            time.sleep(0.1)

    def press(self, key):
        more = {"text": "\r"} if key == "Enter" else {"text": " "} if key == " " else {}
        for kind in ("keyDown" if more else "rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code="Space" if key == " " else key,
                      windowsVirtualKeyCode=KEYS[key], **(more if kind == "keyDown" else {}))

    def picture(self, path):
        """Saves a PNG of the whole page."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))
