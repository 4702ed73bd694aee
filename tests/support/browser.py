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
MISSING = (
    f"no browser on this machine: none of {', '.join(NAMES)} is on the path; `apt-get install chromium` brings one,"
    " and nothing else is needed"
)
PATIENCE = 120  # seconds per answer; starting a browser is slow on a busy machine

# The browser reads file descriptor 3 and writes 4. Both ends move first, because one may have that number.
_LAUNCH = (
    "import fcntl, os, sys; ends = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]];"
    " os.dup2(ends[0], 3); os.dup2(ends[1], 4); os.execv(sys.argv[3], sys.argv[3:])"
)
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """Path of a browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser with one tab.

    Attributes:
        messages: what the current page wrote to the console, with errors and violations of its policy.
        requests: the addresses that the current page requested, its own among them.
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
        """Load a page into a window `width` CSS pixels wide, under a colour scheme, and wait until it is loaded."""
        self.resize(width, height)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._call("Page.navigate", url="about:blank")  # an address that differs only by its fragment is not reloaded
        self.messages, self.requests = [], []
        self._call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def resize(self, width: int, height: int = 900) -> None:
        """Change the window's size, in CSS pixels; a narrow one is a phone."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        until = time.monotonic() + PATIENCE
        while not self.value(f"Boolean({condition})"):
            if time.monotonic() > until:
                raise TimeoutError(f"the page: {condition} is not true after {PATIENCE} s")
            time.sleep(0.02)

    def value(self, expression: str) -> Any:
        """Value of a JavaScript expression in the page, or of a promise; it must fit JSON."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", answer["exceptionDetails"]))
        return answer["result"].get("value")

    def named(self) -> list[dict]:
        """The accessibility tree of the page: role, name and `focusable` of each element."""
        found = []
        for node in self._call("Accessibility.getFullAXTree")["nodes"]:
            if node.get("ignored"):
                continue
            properties = {one["name"]: one["value"].get("value") for one in node.get("properties", ())}
            role, name = (node.get(key, {}).get("value", "") for key in ("role", "name"))
            found.append({"role": role, "name": name, "focusable": bool(properties.get("focusable"))})
        return found

    def tap(self, selector: str) -> None:
        """Touch the middle of an element, after scrolling it into view."""
        middle = "((box) => [box.left + box.width / 2, box.top + box.height / 2])"
        find = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{find}.scrollIntoView({{ block: 'center' }})")
        x, y = self.value(f"{middle}({find}.getBoundingClientRect())")
        self._call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self._call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key: str, shift: bool = False) -> None:
        """Press and release a key by its name in `KeyboardEvent.key`; letters and digits are not needed here."""
        code = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}[key]
        fields = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        text = {"Enter": "\r", " ": " "}.get(key)
        self._call("Input.dispatchKeyEvent", type="keyDown", **fields, **({"text": text} if text else {}))
        self._call("Input.dispatchKeyEvent", type="keyUp", **fields)

    def type(self, text: str) -> None:
        """Type a text into the element with the focus."""
        self._call("Input.insertText", text=text)

    def picture(self, path: Path, top: float = 0, height: float | None = None) -> None:
        """Write the page from `top`, as wide as the window, `height` pixels of it or all, as PNG."""
        width, whole = self.value("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": top, "width": width, "height": height or whole - top, "scale": 1}
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        """End the browser."""
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
        raise RuntimeError(f"{method}: the browser ended")

    def _note(self, event: dict) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.consoleAPICalled":
            self.messages.append(" ".join(str(part.get("value", part.get("description"))) for part in params["args"]))
        elif event.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.messages.append(details.get("exception", {}).get("description", details["text"]))
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event.get("method") == "Log.entryAdded":
            self.messages.append(params["entry"]["text"])

    def _send(self, message: dict) -> None:
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]

    def _messages(self) -> Iterator[dict]:
        while True:
            while b"\0" not in self._received:
                if not select.select([self._read], [], [], PATIENCE)[0]:
                    raise TimeoutError(f"the browser did not answer within {PATIENCE} s")
                part = os.read(self._read, 1 << 20)
                if not part:
                    return
                self._received += part
            message, self._received = self._received.split(b"\0", 1)
            yield json.loads(message)
