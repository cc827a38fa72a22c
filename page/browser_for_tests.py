# SPDX-License-Identifier: Apache-2.0
"""A real Chromium on the page of a real server, whose engine says what a test tells it.

What `./dev soak` installs; without it the tests that need it are skipped, with the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from selenium import webdriver
from selenium.common.exceptions import (
    ElementNotInteractableException,
    StaleElementReferenceException,
)
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from rtp_llm.engine.messages import AddRequest
from rtp_llm.testing.server.agents import agent_folder, agent_tokenizer
from rtp_llm.testing.server.fake_engine import FakeEngine, ready_message
from rtp_llm.testing.server.serving import listening

Seen = TypeVar("Seen")
Chromium = tuple[webdriver.Chrome, Path]  # and the folder of what it downloads
_NOT_YET = (ElementNotInteractableException, StaleElementReferenceException)
SECONDS = 60.0  # a deadline, not what anything takes
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1280,860",
)
_PROGRAMS = [shutil.which(name) for name in ("chromium", "chromedriver")]
needs_chromium = pytest.mark.skipif(
    None in _PROGRAMS, reason="no Chromium here: apt-get install chromium chromium-driver"
)


def scripted_engine(answers: dict[str, str], *, step_seconds: float = 0.001) -> FakeEngine:
    """Says answers[words] if the last message of a prompt, which begins with its role, has them."""
    tokenizer = agent_tokenizer()

    def script(request: AddRequest, index: int) -> list[int]:
        conversation = prompt_of(request).rpartition("<|im_start|>assistant\n")[0]
        last = conversation.rpartition("<|im_start|>")[2]
        text = next((text for words, text in answers.items() if words in last), "I have read it.")
        return tokenizer.encode(text, add_special_tokens=False)

    engine = FakeEngine(script, step_seconds=step_seconds)
    engine.next_ready = ready_message(max_model_len=8192)
    return engine


def prompt_of(request: AddRequest) -> str:
    """What the model is given."""
    return agent_tokenizer().decode(request.prompt_token_ids, skip_special_tokens=False)


class Browser:
    """The page as its user sees it. Elements are found by CSS, or by the name that is read out."""

    def __init__(self, driver: webdriver.Chrome, url: str, downloads: Path) -> None:
        self.driver, self.url, self.downloads = driver, url, downloads
        self._addresses: list[str] = []
        driver.get(url)
        self.wait(lambda: self.find("#message") and self.find(".state.up"))

    # -- what is there ---------------------------------------------------------------------------

    def find(self, css: str) -> list[WebElement]:
        return list(self.driver.find_elements(By.CSS_SELECTOR, css))

    def one(self, css: str) -> WebElement:
        """Waits for it."""
        return self.wait(lambda: self.find(css))[0]

    def texts(self, css: str) -> list[str]:
        return [str(each.get_property("textContent")) for each in self.find(css)]

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, seen: Callable[[], Seen]) -> Seen:
        """What `seen` gives as soon as it is true of the page."""
        deadline = time.monotonic() + SECONDS
        while True:
            with contextlib.suppress(*_NOT_YET):
                if result := seen():
                    return result
            if time.monotonic() > deadline:
                self.shoot("failed")
                raise AssertionError(f"not within {SECONDS} s; the page: {self.texts('main')}")
            time.sleep(0.02)

    # -- what is done ----------------------------------------------------------------------------

    def ask(self, text: str) -> None:
        """Types a message and waits for the end of its answer."""
        self.write(text)
        self.wait_for_answer()

    def write(self, text: str) -> None:
        before = len(self.find(".message.user"))
        self.type("#message", text, Keys.ENTER)
        self.wait(lambda: len(self.find(".message.user")) > before or self.openings())

    def type(self, css: str, *keys: str) -> None:
        """As soon as it takes them: what a dialog still covers takes none."""

        def typed() -> bool:
            self.one(css).send_keys(*keys)
            return True

        self.wait(typed)

    def openings(self) -> list[WebElement]:
        return self.find(".message.assistant")

    def wait_for_answer(self) -> None:
        self.wait(lambda: self.find(".messages[aria-busy=false]") and self.openings())

    def press(self, label: str, within: str = "") -> None:
        """The last button of this name."""
        css = f"{within} button[aria-label={json.dumps(label)}]"
        button = self.wait(lambda: [each for each in self.find(css) if each.is_displayed()])[-1]
        self.run("arguments[0].click()", button)

    def press_text(self, text: str) -> None:
        buttons = self.wait(lambda: [each for each in self.find("button") if each.text == text])
        buttons[-1].click()

    def keys(self, *keys: str) -> None:
        """Pressed together."""
        chain = ActionChains(self.driver)
        for key in keys:
            chain.key_down(key)
        for key in reversed(keys):
            chain.key_up(key)
        chain.perform()

    def field(self, label: str) -> WebElement:
        """Of the dialog or form that is open or opens, by the words above it."""
        words = f"starts-with(normalize-space(.), {json.dumps(label)})"
        path = f"//label[{words}]//*[self::input or self::textarea or self::select]"
        find = self.driver.find_elements
        return self.wait(lambda: [e for e in find(By.XPATH, path) if e.is_displayed()])[0]

    def fill(self, label: str, text: str) -> None:
        field = self.field(label)
        field.clear()
        field.send_keys(text)

    # -- what is kept ----------------------------------------------------------------------------

    def shoot(self, name: str) -> None:
        """A screenshot among the outputs of the test."""
        folder = Path(os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR", tempfile.gettempdir()))
        self.driver.save_screenshot(str(folder / f"page_{name}.png"))

    def complaints(self) -> list[str]:
        """What the browser's console has; a script that the policy stops is named there."""
        return [entry["message"] for entry in _log(self.driver, "browser")]

    def requested_elsewhere(self) -> list[str]:
        """Addresses that the browser has asked for and that are not this server's."""
        entries = [
            json.loads(each["message"])["message"] for each in _log(self.driver, "performance")
        ]
        sent = [each for each in entries if each["method"] == "Network.requestWillBeSent"]
        self._addresses += [each["params"]["request"]["url"] for each in sent]
        assert any(address.startswith(self.url) for address in self._addresses)
        outside = [address for address in self._addresses if not address.startswith(self.url)]
        # chrome: and data: are the browser's own first page.
        return [address for address in outside if not address.startswith(("chrome:", "data:"))]


def _log(driver: webdriver.Chrome, name: str) -> list[dict[str, Any]]:
    """What a log has got since it was last asked for."""
    entries: list[dict[str, Any]] = driver.get_log(name)  # type: ignore[no-untyped-call]
    return entries


@contextlib.contextmanager
def chromium() -> Iterator[Chromium]:
    """A browser with a fresh profile, and the folder of what it downloads."""
    binary, driver_program = _PROGRAMS
    with tempfile.TemporaryDirectory() as profile, tempfile.TemporaryDirectory() as downloads:
        options = webdriver.ChromeOptions()
        options.binary_location = str(binary)
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.add_experimental_option("prefs", {"download.default_directory": downloads})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options, webdriver.ChromeService(str(driver_program)))
        try:
            yield driver, Path(downloads)
        finally:
            driver.quit()


@contextlib.contextmanager
def page_of(browser: Chromium, engine: FakeEngine, **settings: Any) -> Iterator[Browser]:
    """The page of a new server: another port is another origin, so nothing is stored for it yet."""
    driver, downloads = browser
    for old in downloads.iterdir():
        old.unlink()
    settings = {"model": str(agent_folder()), **settings}
    with listening(engine, tokenizer=agent_tokenizer(), **settings) as url:
        for log in ("browser", "performance"):
            _log(driver, log)
        yield Browser(driver, url + "/", downloads)
        driver.get("about:blank")
