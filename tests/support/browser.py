"""A headless Chromium, controlled over its DevTools protocol by pipes, without a package.

Protocol: https://chromedevtools.github.io/devtools-protocol. Messages are JSON, each ended by a zero byte.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHECKS = Path(__file__).with_name("page_checks.js").read_text(encoding="utf-8")  # functions that tests call in a page
MISSING = (
    f"no browser on this machine: none of {', '.join(NAMES)} is on the path; `apt-get install chromium` installs "
    "one, without further packages"
)
PATIENCE = 120  # seconds to wait for an answer; starting a browser is slow on a busy machine

# The browser reads from file descriptor 3 and writes to 4. Both pipe ends first get higher numbers, because one of them
# may have the number 3 or 4.
_LAUNCH = (
    "import fcntl, os, sys; ends = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]];"
    " os.dup2(ends[0], 3); os.dup2(ends[1], 4); os.execv(sys.argv[3], sys.argv[3:])"
)
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--no-default-browser-check", "--hide-scrollbars", "--remote-debugging-pipe"),
)


def find() -> str | None:
    """Path of a browser; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser with one tab.

    Attributes:
        messages: texts that the current page wrote to the console, errors, and violations of its security policy.
        requests: the addresses that the current page requested, including its own.
    """

    def __init__(self, path: str, profile: Path):
        to_browser, from_browser = os.pipe(), os.pipe()
        theirs = to_browser[0], from_browser[1]
        self._write, self._read = to_browser[1], from_browser[0]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, *map(str, theirs), path, *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in theirs:
            os.close(end)
        self._received, self._number, self._session = b"", 0, ""
        self.messages: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def show(self, address: str, width: int = 1280, scheme: str = "light", height: int = 900) -> None:
        """Loads a page into a window of this size in CSS pixels, and waits; narrow windows emulate a phone."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._call("Page.navigate", url="about:blank")  # an address that differs only by its fragment is not reloaded
        self.messages, self.requests = [], []
        self._call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def wait(self, condition: str) -> None:
        """Waits until a JavaScript expression is true."""
        until = time.monotonic() + PATIENCE
        while not self.value(f"Boolean({condition})"):
            if time.monotonic() > until:
                raise TimeoutError(f"page: expected {condition} within {PATIENCE} s, got false")
            time.sleep(0.02)

    def value(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression in the page, or of its promise; the value must fit into JSON."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", answer["exceptionDetails"]))
        return answer["result"].get("value")

    def named(self) -> list[dict]:
        """Returns the accessibility tree of the page: role, name and `focusable` of each element."""
        found = []
        for node in self._call("Accessibility.getFullAXTree")["nodes"]:
            role, name = (node.get(key, {}).get("value", "") for key in ("role", "name"))
            focusable = any(one["name"] == "focusable" and one["value"]["value"] for one in node.get("properties", ()))
            if not node.get("ignored"):
                found.append({"role": role, "name": name, "focusable": focusable})
        return found

    def tap(self, selector: str) -> None:
        """Scrolls an element into view and touches its middle."""
        find = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{find}.scrollIntoView({{ block: 'center' }})")
        box = self.value(f"{find}.getBoundingClientRect().toJSON()")
        place = {"x": box["left"] + box["width"] / 2, "y": box["top"] + box["height"] / 2}
        self._call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[place])
        self._call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key: str) -> None:
        """Presses and releases Tab, Enter, the space bar or an arrow key, by its name in `KeyboardEvent.key`."""
        code = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}[key]
        fields = {"key": key, "windowsVirtualKeyCode": code}
        text = {"Enter": {"text": "\r"}, " ": {"text": " "}}.get(key, {})
        self._call("Input.dispatchKeyEvent", type="keyDown", **fields, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", **fields)

    def picture(self, path: Path) -> None:
        """Writes a PNG of the whole page."""
        width, height = self.value("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        """Ends the browser."""
        with contextlib.suppress(OSError):
            self._send({"id": 0, "method": "Browser.close"})
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def _call(self, method: str, **params: Any) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        self._send({**message, **({"sessionId": self._session} if self._session else {})})
        for answer in self._messages():
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)
        raise RuntimeError(f"{method}: expected an answer, got the end of the browser")

    def _note(self, event: dict) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.consoleAPICalled":
                parts = (str(part.get("value", part.get("description"))) for part in params["args"])
                self.messages.append(" ".join(parts))
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.messages.append(details.get("exception", {}).get("description", details["text"]))
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Log.entryAdded":
                self.messages.append(params["entry"]["text"])

    def _send(self, message: dict) -> None:
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]

    def _messages(self) -> Iterator[dict]:
        while True:
            while b"\0" not in self._received:
                if not select.select([self._read], [], [], PATIENCE)[0]:
                    raise TimeoutError(f"browser: expected an answer within {PATIENCE} s, got none")
                part = os.read(self._read, 1 << 20)
                if not part:
                    return
                self._received += part
            message, self._received = self._received.split(b"\0", 1)
            yield json.loads(message)
