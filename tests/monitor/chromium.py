"""Chromium, driven by its own protocol: pages are opened, asked and photographed, and what they ask for is seen."""

import asyncio
import base64
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from saga.support.clock import SystemClock
from saga.testing.servers.missing import ServersMissing
from tests.servers.npm import fetched_by_npm

CLOCK = SystemClock()
WITHIN_S = 60.0
AXE = Path(__file__).with_name("axe")
AXE_FOLDER = Path(__file__).parents[2] / "build" / "axe"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def program() -> Path:
    """Path of the browser. Raises `ServersMissing`."""
    found = next((path for name in PROGRAMS if (path := shutil.which(name)) is not None), None)
    if found is None:
        raise ServersMissing("no Chromium on this machine: apt-get install -y --no-install-recommends chromium")
    return Path(found)


def axe() -> Path:
    """Script of axe-core, which looks whether a page can be used by everybody. Raises `ServersMissing`."""
    return fetched_by_npm(AXE, AXE_FOLDER, "axe-core") / "node_modules" / "axe-core" / "axe.min.js"


@dataclass
class Tab:
    """One page of the browser."""

    socket: aiohttp.ClientWebSocketResponse
    session: str = ""
    asked: list[str] = field(default_factory=list)
    """Addresses that the pages asked for."""
    complaints: list[str] = field(default_factory=list)
    """What the browser complained about: scripts that failed, and what the policy forbids."""
    number: int = 0

    async def call(self, method: str, **params: object) -> dict[str, Any]:
        """Result of a command of the protocol."""
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        await self.socket.send_str(json.dumps(request | ({"sessionId": self.session} if self.session else {})))
        while True:
            answer = await self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result

    async def _next(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(await self.socket.receive_str(timeout=WITHIN_S))
        params = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.asked.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.complaints.append(params["entry"]["text"])
            case "Runtime.consoleAPICalled" if params["type"] == "error":
                self.complaints.append(str(params["args"]))
        return event

    async def goto(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        await self.call("Page.navigate", url=url)
        while (await self._next()).get("method") != "Page.loadEventFired":
            pass

    async def until(self, script: str) -> None:
        """Wait until an expression holds in the page."""
        end_s = CLOCK.monotonic_s() + WITHIN_S
        while not await self.value(script):
            assert CLOCK.monotonic_s() < end_s, (script, await self.value("document.body.innerText"))
            await CLOCK.sleep(0.1)

    async def value(self, script: str) -> Any:
        """Value of an expression in the page."""
        result = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def press(self, key: str) -> None:
        """Press a key, and let it go."""
        codes = {"Tab": 9, "Enter": 13, "/": 191}
        text = {"Enter": "\r", "/": "/"}.get(key, "")
        more = {"key": key, "windowsVirtualKeyCode": codes[key]}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **more)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **more)

    async def look(self, *, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        """Have the page think of a screen of this size, light or dark."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme, still])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)

    async def picture(self, path: Path) -> None:
        """Write what is to be seen into a PNG file."""
        shot = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))

    async def barriers(self, script: str) -> list[str]:
        """What axe-core finds in the page, each with the first element."""
        await self.value(f"{script}; true")
        found = await self.value("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
        return [f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:300]}" for each in found]


def _started(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)


@asynccontextmanager
async def a_tab(folder: Path) -> AsyncIterator[Tab]:
    """A page in a browser of its own, which ends with the block. `folder`: for what it writes."""
    profile = folder / "profile"
    command = [
        str(program()),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "about:blank",
    ]
    process = await asyncio.to_thread(_started, command, folder / "chromium.log")
    try:
        address = await _address(profile / "DevToolsActivePort", process)
        async with aiohttp.ClientSession() as http, http.ws_connect(address, max_msg_size=1 << 28) as socket:
            tab = Tab(socket)
            target = await tab.call("Target.createTarget", url="about:blank")
            attached = await tab.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
            tab.session = attached["sessionId"]
            for part in ("Page", "Network", "Runtime", "Log"):
                await tab.call(f"{part}.enable")
            yield tab
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, WITHIN_S)


async def _address(file: Path, process: subprocess.Popen[bytes]) -> str:
    """Address of the browser's protocol, once it says so."""
    end_s = CLOCK.monotonic_s() + WITHIN_S
    while True:
        lines = await asyncio.to_thread(lambda: file.read_text().splitlines() if file.exists() else [])
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        assert process.poll() is None, "the browser has ended"
        assert CLOCK.monotonic_s() < end_s, "the browser does not start"
        await CLOCK.sleep(0.05)
