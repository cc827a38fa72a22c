# SPDX-License-Identifier: Apache-2.0
"""The page of servers that load or do not answer, of several models, and on a phone."""

from __future__ import annotations

import json
from typing import Any

from selenium.webdriver.common.by import By

from page.browser_for_tests import (
    Browser,
    Chromium,
    needs_chromium,
    page_of,
    prompt_of,
    scripted_engine,
)

pytestmark = needs_chromium
pytest_plugins = "page.browser_fixture_for_tests"

WIDE = (
    "| " + " | ".join(f"column {n}" for n in range(12)) + " |\n" + "|--" * 12 + "|\n"
    "| " + " | ".join(f"value {n}" for n in range(12)) + " |\n\n"
    "$$" + " + ".join(f"x_{{{n}}}^2" for n in range(40)) + "$$\n\n| a | b |\n|--|--|\n| 1 | 2 |\n"
)
# In the place of the server's answer.
FAKE_ANSWER = """
const real = window.fetch;
const [path, status, body] = arguments;
window.fetch = (address, ...rest) =>
  String(address).endsWith(path)
    ? status === 0
      ? Promise.reject(new TypeError("Failed to fetch"))
      : Promise.resolve(new Response(body, { status }))
    : real(address, ...rest);
window.realFetch ??= real;
"""


def answer_instead(page: Browser, path: str, status: int, body: Any) -> None:
    page.run(FAKE_ANSWER, path, status, json.dumps(body))


def test_a_server_that_does_not_answer_is_reported(browser: Chromium) -> None:
    with page_of(browser, scripted_engine({"fox": "A fox is a canid."})) as page:
        answer_instead(page, "v1/chat/completions", 0, None)
        answer_instead(page, "health", 0, None)
        page.ask("What is a fox?")
        words = "The server does not answer. Try again."
        assert page.texts(".message.assistant .error[role=alert]") == [words]
        page.wait(lambda: page.texts(".banner.down p") == [words])
        assert page.find(".state.down")
        page.shoot("no_answer")
        page.run("window.fetch = window.realFetch")
        page.press_text("Try again")
        page.wait(lambda: page.find(".state.up") and not page.find(".banner"))
        page.press("Try again")
        page.wait(lambda: page.texts(".message.assistant p") == ["A fox is a canid."])


def test_loading_is_shown_as_progress(browser: Chromium) -> None:
    with page_of(browser, scripted_engine({})) as page:
        health = {"status": "starting", "reason": "Loading.", "loading": {"done": 30, "total": 40}}
        answer_instead(page, "health", 503, health)
        answer_instead(page, "v1/chat/completions", 503, {"error": {"message": "Loading."}})
        page.ask("Hello")
        page.wait(lambda: page.texts(".banner:not(.down) p") == ["Loading."])
        assert page.one("progress").get_property("value") == 0.75
        assert page.find(".state.loading") and not page.find(".state.down")
        page.shoot("loading")


def test_one_of_several_models_is_chosen_in_the_header(browser: Chromium) -> None:
    with page_of(browser, scripted_engine({})) as page:
        assert not page.find("header select")
        models = [{"id": name, "max_model_len": 8192} for name in ("demo", "other")]
        answer_instead(page, "v1/models", 200, {"data": models})
        page.press("Settings")
        page.press_text("Save")
        page.wait(lambda: page.find("header select"))
        page.one("header select").send_keys("other")
        page.wait(lambda: page.one("header select").get_property("value") == "other")
        page.ask("Hello")  # which the server has not
        assert "other" in page.texts(".message.assistant .error")[0]
        assert page.run("return localStorage['rtp-llm.settings']").count('"model":"other"') == 1


def test_an_example_is_a_question(browser: Chromium) -> None:
    with page_of(browser, scripted_engine({"12 + 30": "It is 42."})) as page:
        page.shoot("examples")
        page.press_text("What is 12 + 30?")
        page.wait(lambda: page.texts(".message.assistant p") == ["It is 42."])
        assert page.texts(".message.user .typed") == ["What is 12 + 30?"]


def test_icons_of_the_sidebar_have_labels(browser: Chromium) -> None:
    with page_of(browser, scripted_engine({})) as page:
        assert page.texts("nav .bottom button") == ["Import", "Export", "Settings", "Shortcuts"]
        boxes = [each.rect for each in page.find("nav .bottom button")]
        nav = page.one("nav").rect
        assert all(box["x"] >= nav["x"] for box in boxes)
        assert all(box["x"] + box["width"] <= nav["x"] + nav["width"] for box in boxes)


def test_a_conversation_has_a_system_prompt_of_its_own(browser: Chromium) -> None:
    engine = scripted_engine({})
    with page_of(browser, engine) as page:
        page.press("Settings")
        page.fill("System prompt", "Be brief.")
        page.press_text("Save")
        page.ask("One")
        page.press("System prompt of this conversation")
        assert page.field("For this conversation").get_property("value") == "Be brief."
        page.fill("For this conversation", "Answer in rhymes.")
        page.press_text("Save")
        page.ask("Two")
        page.press_text("New conversation")
        page.wait(lambda: page.find(".welcome"))
        page.ask("Three")
    first, second, third = (prompt_of(request) for request in engine.requests)
    assert "system\nBe brief.<" in first and "system\nBe brief.<" in third
    assert "system\nAnswer in rhymes.<" in second and "Be brief" not in second


def test_sampling_settings_and_a_schema_are_sent(browser: Chromium) -> None:
    engine = scripted_engine({})
    with page_of(browser, engine) as page:
        page.press("Settings")
        page.fill("JSON schema", "[]")
        assert page.texts(".problem") == ["A JSON object."]
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        page.fill("JSON schema", json.dumps(schema))
        values = ("Top-k", "5"), ("Min-p", "0.1"), ("Seed", "7"), ("Repetition penalty", "1.1")
        for label, value in (*values, ("Presence penalty", "-1"), ("Frequency penalty", "1")):
            page.fill(label, value)
        page.shoot("all_settings")
        page.press_text("Save")
        page.ask("Hello")
    (request,) = engine.requests
    params = request.params
    assert (params.top_k, params.min_p, params.seed) == (5, 0.1, 7)
    assert (params.presence_penalty, params.frequency_penalty) == (-1, 1)
    assert params.repetition_penalty == 1.1
    assert request.grammar is not None


def test_what_is_too_wide_for_a_phone_scrolls_and_shows_it(browser: Chromium) -> None:
    with page_of(browser, scripted_engine({"wide": WIDE})) as page:
        size = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        try:
            page.driver.refresh()
            page.wait(lambda: page.find(".state.up"))
            page.ask("Something wide")
            page.shoot("phone_wide")
            assert page.run("return document.documentElement.scrollWidth") == 390
            wide, formula, narrow = page.driver.find_elements(
                By.CSS_SELECTOR, ".table, .formula.display"
            )
            hidden = "return arguments[0].scrollWidth - arguments[0].clientWidth"
            assert page.run(hidden, wide) > 100 and page.run(hidden, formula) > 100
            assert page.run(hidden, narrow) == 0
            shadows = page.run("return getComputedStyle(arguments[0]).backgroundImage", formula)
            assert shadows.count("linear-gradient") == 4
        finally:
            page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
