"""Open what `tair dump -t model-explorer` and `--node-data` write with Model Explorer itself, and say what it shows.

Its server runs from a folder of its own, its page in a headless Chromium; what counts is what the page says.

python -m labs.model_explorer FILE.json [NODE_DATA.json] [--at FOLDER]  --at keeps the installation (490 MB)
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any, Final

PACKAGE: Final = "ai-edge-model-explorer"
_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
_SHOWN: Final = ("op node count", "layer count")
_WAIT: Final = 60.0  # seconds


def install(folder: Path) -> None:
    """Bring the package, unless the folder has it."""
    if not (folder / "model_explorer").is_dir():
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), PACKAGE], check=True)


def opened(folder: Path, graph: Path, data: Path | None = None) -> dict[str, int]:
    """What the page says of a graph file: its numbers of nodes and layers; empty if it does not open it."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise SystemExit("needs Chromium, to see what the page shows")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "model_explorer", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--no_open_in_browser", "--skip_health_check", str(graph.resolve())]
    command += ["--node_data_paths", str(data.resolve())] if data else []
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryDirectory() as name:
        said = Path(name) / "said"
        with said.open("wb") as out:
            server = subprocess.Popen(command, cwd=name, env=environment, stdout=out, stderr=subprocess.STDOUT)
        try:
            text = _text(browser, Path(name), _address(server, said, port))
        finally:
            server.terminate()
            server.wait()
    found = {what: re.search(rf"{what}\s+(\d+)", text) for what in _SHOWN}
    return {what: int(match[1]) for what, match in found.items() if match}


def _text(browser: str, folder: Path, address: str) -> str:
    """What a page says once it shows a graph, or in the end. The browser is told what to do through two pipes."""
    (read, tell), (hear, write) = os.pipe(), os.pipe()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
    command = ["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "bash", browser, *options, "--remote-debugging-pipe"]
    shown = subprocess.Popen(command, pass_fds=(read, write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(read)
    os.close(write)
    try:
        with open(tell, "wb", buffering=0) as out, open(hear, "rb", buffering=0) as back:
            ask = _Asking(out, back)
            target = ask("Target.createTarget", url=address)["targetId"]
            session = ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            text, end = "", time.monotonic() + _WAIT
            while time.monotonic() < end and not all(what in text for what in _SHOWN):
                time.sleep(0.5)
                found = ask("Runtime.evaluate", session, expression="document.body?.innerText ?? ''")
                text = found["result"].get("value", "")
            return text
    finally:
        shown.terminate()
        shown.wait()


class _Asking:
    """Commands of the DevTools protocol: JSON, each ended by a zero byte."""

    def __init__(self, out: IO[bytes], back: IO[bytes]) -> None:
        self._out, self._back, self._number, self._left = out, back, 0, b""

    def __call__(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        self._out.write(json.dumps({**command, **({"sessionId": session} if session else {})}).encode() + b"\0")
        while True:
            while b"\0" not in self._left:
                more = self._back.read(1 << 16)
                if not more:
                    raise SystemExit("the browser went away")
                self._left += more
            message, _, self._left = self._left.partition(b"\0")
            told = json.loads(message)
            if told.get("id") == self._number:
                return told["result"]


def _address(server: subprocess.Popen[bytes], said: Path, port: int) -> str:
    """The page's address, once the server answers."""
    end = time.monotonic() + _WAIT
    while time.monotonic() < end and server.poll() is None:
        match = re.search(rf"http://127\.0\.0\.1:{port}/\S*", said.read_text(errors="replace"))
        if match:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/check_health", timeout=5).close()
                return match[0]
            except (urllib.error.URLError, OSError):
                pass
        time.sleep(0.2)
    raise SystemExit(f"the server does not answer:\n{said.read_text(errors='replace')[-2000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", type=Path)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--at", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = given.at or Path(name)
        install(folder)
        found = opened(folder, given.graph, given.data)
    for what, number in found.items():
        print(f"{what}: {number}")
    return 0 if len(found) == len(_SHOWN) else 1


if __name__ == "__main__":
    sys.exit(main())
