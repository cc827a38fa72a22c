# SPDX-License-Identifier: Apache-2.0
"""Conversations in a real Chromium: their branches, and how they are kept, found and moved."""

from __future__ import annotations

import json

from selenium.webdriver.common.keys import Keys

from page.browser_for_tests import (
    Chromium,
    needs_chromium,
    page_of,
    prompt_of,
    scripted_engine,
)

pytestmark = needs_chromium
pytest_plugins = "page.browser_fixture_for_tests"
LONG = "A long story that goes on and on. " * 60


def test_messages_are_edited_tried_again_and_branched(browser: Chromium) -> None:
    engine = scripted_engine({"red": "Red is warm.", "blue": "Blue is cold."})
    with page_of(browser, engine) as page:
        page.ask("Tell me of red")
        page.press("Edit message", ".message.user")
        area = page.one(".editor textarea")
        area.clear()
        area.send_keys("Tell me of blue", Keys.CONTROL + Keys.ENTER)
        page.wait(lambda: page.texts(".message.assistant p") == ["Blue is cold."])
        page.wait_for_answer()
        assert page.texts(".message.user .siblings > span") == ["2 / 2"]
        page.press("Previous version", ".message.user")
        page.wait(lambda: page.texts(".message.assistant p") == ["Red is warm."])
        page.press("Try again")
        page.wait(lambda: page.texts(".message.assistant .siblings > span") == ["2 / 2"])
        page.ask("And what of blue?")
        assert page.texts(".message.assistant p") == ["Red is warm.", "Blue is cold."]
        page.shoot("versions")
        page.run(
            "document.querySelectorAll('.message.assistant')[0]"
            ".querySelector('[aria-label^=Branch]').click()"
        )
        page.wait(lambda: len(page.find("nav li")) == 2)
        assert page.texts(".message.assistant p") == ["Red is warm."]
        assert not page.find(".siblings")
        page.press("Edit message", ".message.assistant")
        page.type(".editor textarea", " Or hot.")
        page.press_text("Save")
        page.wait(lambda: page.texts(".message.assistant p") == ["Red is warm. Or hot."])
        page.press("Delete message", ".message.assistant")
        page.press_text("Delete")
        page.wait(lambda: page.texts(".message.assistant p") == ["Red is warm."])
        assert page.complaints() == []


def test_stop_ends_the_request_and_keeps_what_was_said(browser: Chromium) -> None:
    engine = scripted_engine({"story": LONG}, step_seconds=0.02)
    with page_of(browser, engine) as page:
        page.write("Tell a story")
        page.wait(lambda: len(page.texts(".message.assistant p")) == 1)
        page.shoot("streaming")
        page.press("Stop")
        page.wait(lambda: "stopped" in "".join(page.texts(".message.assistant .stats")))
        page.wait(lambda: engine.aborted)
        (said,) = page.texts(".message.assistant p")
        assert said and LONG.startswith(said)
        page.write("Tell a story again")
        page.wait(lambda: len(page.find(".message.assistant p")) == 2)
        page.keys(Keys.ESCAPE)
        page.wait(lambda: len(engine.aborted) == 2)
        page.wait_for_answer()


def test_an_answer_that_was_cut_is_continued(browser: Chromium) -> None:
    engine = scripted_engine({"story": LONG}, step_seconds=0.02)
    with page_of(browser, engine) as page:
        page.write("Tell a story")
        page.wait(lambda: len("".join(page.texts(".message.assistant p"))) > 8)
        page.press("Stop")
        page.wait_for_answer()
        (said,) = page.texts(".message.assistant p")
        page.press("Continue answer")
        page.wait(lambda: len(page.texts(".message.assistant p")[0]) > len(said))
        page.press("Stop")
        page.wait_for_answer()
        assert not page.find(".siblings")
        (more,) = page.texts(".message.assistant p")
        assert more.startswith(said + "A") and LONG.startswith(more.removeprefix(said))
        assert prompt_of(engine.requests[1]).endswith("<|im_start|>assistant\n" + said)


def test_conversations_are_kept_found_and_deleted(browser: Chromium) -> None:
    with page_of(browser, scripted_engine({"fox": "A fox is a canid."})) as page:
        page.ask("What is a fox?")
        page.keys(Keys.CONTROL, Keys.SHIFT, "o")
        page.wait(lambda: page.find(".welcome"))
        page.ask("Something else")
        page.driver.refresh()
        page.wait(lambda: len(page.find("nav li")) == 2)
        page.keys(Keys.CONTROL, "k")
        page.wait(lambda: page.run("return document.activeElement.id") == "search")
        page.type("#search", "CANID")
        page.wait(lambda: page.texts("nav li .title") == ["What is a fox?"])
        page.one("nav li .title").click()
        page.wait(lambda: page.texts(".message.assistant p") == ["A fox is a canid."])
        page.shoot("search")
        page.press("Rename conversation")
        page.type("nav li input", "Foxes", Keys.ENTER)
        page.wait(lambda: page.texts("nav li .title") == ["Foxes"])
        page.press("Delete conversation")
        page.press_text("Cancel")
        assert page.texts("nav li .title") == ["Foxes"]
        page.press("Delete conversation")
        page.press_text("Delete")
        page.wait(lambda: page.texts("nav .empty") == ["Nothing found."])
        page.driver.refresh()
        page.wait(lambda: page.texts("nav li .title") == ["Something else"])


def test_conversations_are_exported_and_imported(browser: Chromium) -> None:
    with page_of(browser, scripted_engine({"fox": "A fox is a canid."})) as page:
        page.ask("What is a fox?")
        page.press("Try again")
        page.wait(lambda: page.texts(".message.assistant .siblings > span") == ["2 / 2"])
        page.wait_for_answer()
        page.press("Export all conversations")
        (file,) = page.wait(lambda: list(page.downloads.glob("*.json")))
        content = json.loads(file.read_text())
        assert content["format"] == "rtp-llm.conversations"
        (exported,) = content["conversations"]
        assert [each["role"] for each in exported["messages"]] == ["user", "assistant", "assistant"]
        page.press("Delete conversation")
        page.press_text("Delete")
        page.wait(lambda: not page.find("nav li"))
        page.one("nav input[type=file]").send_keys(str(file))
        page.wait(lambda: page.texts("nav li .title") == ["What is a fox?"])
        page.one("nav li .title").click()
        page.wait(lambda: page.texts(".message.assistant p") == ["A fox is a canid."])
        assert page.texts(".message.assistant .siblings > span") == ["2 / 2"]
        broken = page.downloads / "broken.json"
        broken.write_text('{"format": "other"}')
        page.one("nav input[type=file]").send_keys(str(broken))
        page.wait(lambda: "no conversations of this page" in "".join(page.texts(".notices")))
