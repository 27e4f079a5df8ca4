"""A headless Chromium, driven through its debugging pipe (Chrome DevTools Protocol), without further packages."""

import fcntl
import json
import os
import shutil
import subprocess
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """Path of a Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab. A context manager; events are kept by the name of their method."""

    def __init__(self, profile: Path) -> None:
        (low_in, ours_out), (ours_in, low_out) = os.pipe(), os.pipe()
        theirs_in, theirs_out = (fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (low_in, low_out))  # above 3 and 4
        command = [
            str(find_browser()), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run",
            "--disable-background-networking", "about:blank",
        ]  # fmt: skip
        # Chromium reads commands from fd 3 and writes to 4
        shell = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *command]
        self.process = subprocess.Popen(
            shell, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for fd in (low_in, low_out, theirs_in, theirs_out):
            os.close(fd)
        self._out, self._in = os.fdopen(ours_out, "wb", buffering=0), os.fdopen(ours_in, "rb", buffering=0)
        self._number, self._rest, self.session = 0, b"", ""
        self.events: dict[str, list[dict[str, Any]]] = {}
        target = next(row for row in self.call("Target.getTargets")["targetInfos"] if row["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait(20)
        self._out.close()
        self._in.close()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command, and return its result; RuntimeError where the browser refuses."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            if "method" in answer:
                self.events.setdefault(answer["method"], []).append(answer["params"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            chunk = self._in.read(1 << 16)
            if not chunk:
                raise RuntimeError("the browser ended")
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description"))
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = 20) -> Any:
        """The value of an expression once it is true; AssertionError where it does not become so."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, expression
            time.sleep(0.05)
        return value

    def open(self, url: str) -> None:
        """Load a page."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def type(self, text: str) -> None:
        """Type, letter by letter, where the focus is."""
        for letter in text:
            self.call("Input.insertText", text=letter)

    def press(self, key: str) -> None:
        """Press a key."""
        codes = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9}
        of_key = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        letter = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **of_key, **letter)
        self.call("Input.dispatchKeyEvent", type="keyUp", **of_key)

    def inaccessible(self) -> list[str]:
        """What axe-core finds in the page, by its default rules: the rule, why, and where first."""
        script = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
        self.evaluate(f"{script};0")
        return self.evaluate(
            "axe.run({resultTypes: ['violations']}).then(found => found.violations.map("
            "rule => `${rule.id}: ${rule.nodes[0].failureSummary} at ${rule.nodes[0].target}`))"
        )

    def view(self, width: int, height: int, scheme: str) -> None:
        """Set the size of the page and its colour scheme, `light` or `dark`."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
