"""A headless Chromium, driven by its DevTools protocol over two pipes, without another package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ANSWER_S = 60.0


def find() -> str | None:
    """The program, or None where no Chromium is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page. `errors` holds every console error and uncaught exception so far."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="evotune-browser-")
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # Chromium expects the protocol's pipes at the file descriptors 3 and 4.
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            [
                *("bash", "-c", script, "bash", program, "--headless=new", "--no-sandbox"),
                *("--disable-dev-shm-usage", "--remote-debugging-pipe", "--hide-scrollbars"),
                *("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-first-run"),
                *("--disable-background-networking", f"--user-data-dir={self._profile.name}"),
                "about:blank",
            ],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._last_id = 0
        self._session: str | None = None
        self._colours = {"name": "prefers-color-scheme", "value": "light"}
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._write)
        os.close(self._read)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        time.sleep(0.2)  # its children let go of the profile
        self._profile.cleanup()

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Sets the window's size, and whether the system prefers dark colours."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self._colours = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[self._colours])

    def print_preview(self, on: bool) -> None:
        """Shows the page as printed, or as before, and sends the events that printing sends."""
        self.evaluate(f"window.dispatchEvent(new Event('{'beforeprint' if on else 'afterprint'}'))")
        media = "print" if on else ""
        self._call("Emulation.setEmulatedMedia", media=media, features=[self._colours])

    def open(self, page: Path) -> float:
        """Opens a page; returns the seconds until the page says that it is ready."""
        started = time.monotonic()
        self._call("Page.navigate", url=page.resolve().as_uri())
        self.wait("document.documentElement?.dataset.ready === 'true'")
        return time.monotonic() - started

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; AssertionError when it throws. The page's content
        security policy applies to the code that the expression calls."""
        answer = self._call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            allowUnsafeEvalBlockedByCSP=False,
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Waits until a JavaScript condition holds."""
        deadline = time.monotonic() + _ANSWER_S
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"never true: {condition}; {self.errors}"
            time.sleep(0.02)

    def screenshot(self, file: Path, *, top: int, width: int, height: int) -> None:
        """Writes a PNG of the page from `top` on, in pixels, also of parts out of sight."""
        clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    def _receive(self) -> Any:
        while b"\0" not in self._buffer:
            chunk = os.read(self._read, 1 << 16)
            if not chunk and self._session is None:
                pytest.skip("Chromium ends as soon as it is started here")
            assert chunk, "the browser ended"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: Any) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.errors.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
