# SPDX-License-Identifier: Apache-2.0
"""What the page does, in a real Chromium; asserted on the DOM, with screenshots as test outputs."""

from __future__ import annotations

import json

from selenium.webdriver.common.keys import Keys

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

MARKDOWN = """\
# Plan

A **bold** word, an *italic* one, `code`, ~~no~~ and a [link](https://example.org/a?b=c&d).

1. First
2. Second
   - nested
   - [x] done

| fruit | price |
|:--|--:|
| apple | 3 |
| pear | 12 |

> Quoted &amp; decoded &#8212; text.
"""
CODE = """\
A function:

```python
def area(radius: float) -> float:
    # of a circle
    return 3.14159 * radius ** 2
```

It takes a number.
"""
LATEX = r"""
The roots of $ax^2 + bx + c = 0$ are

$$x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}$$

and \(e^{i\pi} = -1\). It costs $5 or $6.

\[\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}\]
"""
TOOLS = [{"type": "function", "function": {"name": "calculator", "parameters": {}}}]
CALL = {"name": "calculator", "arguments": {"expression": "12 + 30"}}
THOUGHT_AND_CALL = (
    f"<think>\nA sum: so I **calculate**.\n</think>\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>"
)


def test_markdown_is_streamed_and_counted(browser: Chromium) -> None:
    with page_of(browser, scripted_engine({"plan": MARKDOWN}, step_seconds=0.004)) as page:
        page.shoot("welcome")
        page.write("Make a plan")
        early = page.wait(lambda: page.texts(".message.assistant .markdown"))[0]
        page.wait_for_answer()
        whole = page.texts(".message.assistant .markdown")[0]
        assert len(early) < len(whole)
        page.shoot("markdown")
        assert page.texts(".markdown h3.level-1") == ["Plan"]
        assert page.texts(".markdown strong") == ["bold"]
        assert page.texts(".markdown ol > li > ul > li")[0] == "nested"
        assert page.find(".markdown .task input:checked:disabled")
        assert page.texts(".markdown td") == ["apple", "3", "pear", "12"]
        assert page.texts("td.align-right") == ["3", "12"]
        assert page.texts("blockquote")[0].strip() == "Quoted & decoded — text."
        (link,) = page.find(".markdown a")
        assert link.get_attribute("href") == "https://example.org/a?b=c&d"
        assert "noopener" in str(link.get_attribute("rel"))
        (stats,) = page.texts(".stats")
        assert "tokens/s" in stats and "first after" in stats
        (context,) = page.texts(".context")
        assert context.endswith("of 8,192 tokens")
        used = int(context.split()[0].replace(",", ""))
        assert page.one("meter").get_property("value") == used > len(MARKDOWN) / 8
        assert page.driver.title.startswith("Make a plan")
        assert page.texts("nav li .title") == ["Make a plan"]
        assert page.complaints() == []
        assert page.requested_elsewhere() == []


def test_code_is_highlighted_and_copied(browser: Chromium) -> None:
    with page_of(browser, scripted_engine({"circle": CODE})) as page:
        page.ask("Area of a circle?")
        page.shoot("code")
        assert page.texts(".code figcaption span") == ["python"]
        assert "def" in page.texts(".code .hljs-keyword")
        assert page.texts(".code .hljs-comment") == ["# of a circle"]
        page.press("Copy code")
        page.one("button[aria-label=Copied]")
        page.type("#message", Keys.CONTROL, "v")
        code = CODE.split("```python\n")[1].split("\n```", maxsplit=1)[0]
        page.wait(lambda: page.one("#message").get_property("value") == code)


def test_latex_is_mathml_and_prices_are_text(browser: Chromium) -> None:
    with page_of(browser, scripted_engine({"roots": LATEX})) as page:
        page.ask("The roots?")
        page.shoot("latex")
        assert len(page.find("math")) == 4
        assert len(page.find(".formula.display math mfrac msqrt")) == 1
        assert page.find(".formula.display math mtable mtr mtd")
        assert r"\frac{-b" in page.texts("math annotation")[1]
        paragraph = page.texts(".markdown p")[-1]
        assert paragraph.endswith("It costs $5 or $6.")
        (box,) = page.find(".message.assistant .formula.display:has(mfrac)")
        assert box.size["height"] > 20


def test_reasoning_and_tools_are_folded_and_results_fed_back(browser: Chromium) -> None:
    engine = scripted_engine({"12 + 30": THOUGHT_AND_CALL, "tool\n42": "It is **42**."})
    with page_of(browser, engine) as page:
        page.press("Settings")
        page.fill("Tools", "[")
        assert "Not JSON" in page.texts(".problem")[0]
        page.fill("Tools", json.dumps(TOOLS))
        page.press_text("Save")
        page.ask("What is 12 + 30?")
        assert [each.get_attribute("open") for each in page.find("details")] == [None, None]
        # As it was thought: Markdown in it is not drawn.
        assert page.texts(".reasoning .typed") == ["A sum: so I **calculate**."]
        assert page.texts(".reasoning summary")[0].startswith("Thought")
        assert page.texts(".call summary") == ["Called calculator"]
        assert json.loads(page.texts(".call pre")[0]) == CALL["arguments"]
        assert json.loads(page.texts(".results pre")[0]) == CALL["arguments"]
        page.run("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        page.type(".results textarea", "42")
        page.shoot("tools")
        page.press_text("Send result")
        page.wait(lambda: page.texts(".message.assistant strong")[-1:] == ["42"])
        page.wait_for_answer()
        page.shoot("tool_result")
    first, second = (prompt_of(request) for request in engine.requests)
    assert '"name": "calculator"' in first and '"name": "calculator"' in second
    shown = f"<tool_call>\n{json.dumps(CALL)}\n</tool_call><|im_end|>\n<|im_start|>tool\n42"
    assert shown in second


def test_settings_are_checked_kept_and_sent(browser: Chromium) -> None:
    engine = scripted_engine({})
    with page_of(browser, engine) as page:
        page.press("Settings")
        page.fill("System prompt", "Be brief.")
        page.fill("Temperature", "hot")
        assert page.one("dialog button[type=submit]").get_attribute("disabled")
        assert page.texts(".problem") == ["A number from 0 to 2."]
        page.fill("Temperature", "0.25")
        page.fill("Top-p", "0.5")
        page.fill("Max tokens", "3")
        page.field("Thinking").send_keys("off")
        page.shoot("settings")
        page.press_text("Save")
        page.wait(lambda: not page.find("dialog"))
        page.driver.refresh()
        page.wait(lambda: page.find(".state.up"))
        page.ask("Hello")
        (request,) = engine.requests
        params = request.params
        assert (params.temperature, params.top_p, params.max_tokens) == (0.25, 0.5, 3)
        assert "length limit" in page.texts(".stats")[0]
        prompt = prompt_of(request)
        assert "<|im_start|>system\nBe brief.<|im_end|>" in prompt
        assert prompt.endswith("<think>\n\n</think>\n\n")  # thinking is off


def test_a_key_is_asked_for_and_not_exported(browser: Chromium) -> None:
    engine = scripted_engine({})
    with page_of(browser, engine, api_key="sesame") as page:
        page.wait(lambda: "asks for an API key" in page.one("dialog .error").text)
        page.shoot("key")
        page.fill("API key", "wrong")
        page.press_text("Save")
        page.wait(lambda: "does not accept" in "".join(page.texts("dialog .error")))
        page.fill("API key", "sesame")
        page.press_text("Save")
        page.wait(lambda: page.texts(".model") == ["demo"])
        page.ask("Hello")
        assert page.texts(".message.assistant p") == ["I have read it."]
        page.press("Export all conversations")
        (file,) = page.wait(lambda: list(page.downloads.glob("*.json")))
        assert "sesame" not in file.read_text()
        assert page.run("return JSON.stringify(localStorage).includes('sesame')") is False
        page.driver.refresh()
        page.wait(lambda: page.texts(".model") == ["demo"])


def test_a_server_that_is_not_ready_is_waited_for(browser: Chromium) -> None:
    engine = scripted_engine({"fox": "A fox is a canid."})
    with page_of(browser, engine) as page:
        engine.restarting = True
        page.ask("What is a fox?")
        assert "is being restarted" in page.texts(".message.assistant .error[role=alert]")[0]
        page.wait(lambda: "is being restarted" in "".join(page.texts(".banner[role=status]")))
        assert page.find(".state.loading") and page.find(".banner:not(.down) progress")
        page.shoot("not_ready")
        engine.restarting = False
        page.wait(lambda: page.find(".state.up") and not page.find(".banner"))
        page.press("Try again")
        page.wait(lambda: page.texts(".message.assistant p") == ["A fox is a canid."])
        page.wait_for_answer()


def test_text_files_are_attached_and_others_refused(browser: Chromium) -> None:
    engine = scripted_engine({})
    with page_of(browser, engine) as page:
        notes, image = page.downloads / "notes.md", page.downloads / "image.png"
        notes.write_text("Some ```fenced``` notes.")
        image.write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
        picker = ".composer input[type=file]"
        page.one(picker).send_keys(str(image))
        page.wait(lambda: "image.png is not UTF-8 text" in "".join(page.texts(".notices")))
        page.one(picker).send_keys(str(notes))
        page.wait(lambda: page.texts(".chips li") == ["notes.md"])
        page.shoot("attachment")
        page.ask("Sum it up")
        assert page.texts(".bubble .fold pre") == ["Some ```fenced``` notes."]
        prompt = prompt_of(engine.requests[0])
        assert "Sum it up\n\nFile notes.md:\n````\nSome ```fenced``` notes.\n````" in prompt


def test_a_phone_in_the_dark(browser: Chromium) -> None:
    with page_of(browser, scripted_engine({"plan": MARKDOWN + CODE + LATEX})) as page:
        size = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
        try:
            page.driver.refresh()
            page.wait(lambda: page.find(".state.up"))
            page.ask("Make a plan")
            width = page.run("return document.documentElement.scrollWidth")
            assert width == 390
            red, green, blue = _ground(page)
            assert max(red, green, blue) < 50
            page.shoot("phone_dark")
            assert not page.one("#sidebar").is_displayed()
            page.press("Conversations")
            page.wait(lambda: page.one("#sidebar").is_displayed())
            page.wait(lambda: page.one("#sidebar").location["x"] == 0)
            page.shoot("phone_sidebar")
            page.one("nav li .title").click()
            page.wait(lambda: not page.one("#sidebar").is_displayed())
        finally:
            page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_all_can_be_done_by_keyboard_and_has_a_name(browser: Chromium) -> None:
    with page_of(browser, scripted_engine({"fox": CODE})) as page:
        page.ask("What is a fox?")
        page.keys(Keys.ARROW_UP)
        page.wait(lambda: page.find(".editor textarea"))
        page.keys(Keys.ESCAPE)
        page.wait(lambda: not page.find(".editor"))
        page.run("document.activeElement.blur()")
        page.keys("/")
        page.wait(lambda: page.run("return document.activeElement.id") == "message")
        page.run("document.activeElement.blur()")
        page.keys("?")
        page.wait(lambda: page.one("dialog .shortcuts").is_displayed())
        page.shoot("shortcuts")
        page.keys(Keys.ESCAPE)
        page.wait(lambda: not page.find("dialog"))
        reached = set()
        for _ in range(60):
            page.keys(Keys.TAB)
            reached.add(page.run("return document.activeElement.getAttribute('aria-label')"))
        wanted = {"Settings", "Search conversations", "Copy code", "Try again", "Edit message"}
        assert wanted <= reached
        tree = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        roles = {"button", "textbox", "searchbox", "combobox", "log", "navigation", "dialog"}
        nodes = [each for each in tree if each.get("role", {}).get("value") in roles]
        named = [(each["role"]["value"], each.get("name", {}).get("value")) for each in nodes]
        assert len(named) > 15 and all(name for _, name in named), named
        assert {"log", "navigation", "textbox"} <= {role for role, _ in named}


def _ground(page: Browser) -> tuple[int, int, int]:
    color = page.run("return getComputedStyle(document.documentElement).backgroundColor")
    red, green, blue = (int(part) for part in color[4:-1].split(","))
    return red, green, blue
