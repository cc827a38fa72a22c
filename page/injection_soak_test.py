# SPDX-License-Identifier: Apache-2.0
"""Whatever a model or a file says, none of it becomes markup: asserted in a real Chromium."""

from __future__ import annotations

import json

import pytest

from page.browser_for_tests import (
    Browser,
    Chromium,
    needs_chromium,
    page_of,
    scripted_engine,
)
from rtp_llm.testing.server.agents import TOOL

pytestmark = needs_chromium
pytest_plugins = "page.browser_fixture_for_tests"

# Each would set window.pwned if it ran.
HTML = (
    "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>"
    "<svg onload='window.pwned = 1'><iframe srcdoc='<script>parent.pwned = 1</script>'></iframe>"
)
LINKS = """\
[one](javascript:window.pwned=1) [two](JaVaScRiPt:window.pwned=1) [three](java&#10;script:pwned=1)
[four](data:text/html,<script>1</script>) [five](vbscript:x) [six](//example.org/x)
[seven](/metrics)
![image](https://example.org/x.png) <javascript:window.pwned=1> [ref][r] <https://example.org/auto>
[eight](blob:https://example.org/1) [nine](https://example.org/"onmouseover="window.pwned=1)

[r]: javascript:window.pwned=1
"""
LATEX = r"""
$\href{javascript:window.pwned=1}{x}$ $\url{javascript:pwned=1}$ $\class{message user}{y}$
$\style{position:fixed;inset:0}{z}$ $\id{message}{w}$ $\data{onload=window.pwned}{v}$
$\includegraphics{https://example.org/x.png}$ $\text{<img src=x onerror=window.pwned=1>}$
$\label{message} \ref{message}$ $\def\a{\a\a}\a$ $\rule{9999em}{9999em}$

$$\begin{align} a &= b \label{message} \tag{<script>window.pwned=1</script>} \end{align}$$
"""
CODE = f"```html\n{HTML}\n```\n\n```<script>window.pwned=1</script>\nx\n```\n\n`{HTML}`\n"
ALLOWED_LINKS = {"http:", "https:", "mailto:"}


def check_harmless(page: Browser) -> None:
    """Nothing ran, nothing was made that could, and nothing was asked of anybody else."""
    page.run("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    for link in page.find(".messages a"):
        page.run("arguments[0].dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))", link)
    assert page.run("return window.pwned === undefined")
    assert page.run("return document.querySelectorAll('script').length") == 1
    assert not page.find("iframe, object, embed, base, form[action], img, video, style")
    assert (
        page.run(
            "return [...document.querySelectorAll('*')].flatMap((each) => [...each.attributes])"
            ".map((each) => each.name).filter((name) => name.startsWith('on') || name === 'srcdoc')"
        )
        == []
    )
    schemes = page.run(
        "return [...document.querySelectorAll('.messages [href]')].map((each) => "
        "new URL(each.getAttribute('href'), location).protocol)"
    )
    assert set(schemes) <= ALLOWED_LINKS
    assert page.run("return document.querySelectorAll('.messages [id]').length") == 0
    assert page.run("return document.querySelectorAll('#message').length") == 1
    assert page.requested_elsewhere() == []
    assert page.complaints() == []


@pytest.mark.parametrize(
    ("name", "text"), [("markdown", HTML), ("links", LINKS), ("latex", LATEX), ("code", CODE)]
)
def test_answers(browser: Chromium, name: str, text: str) -> None:
    with page_of(browser, scripted_engine({"attack": text, "<script>": text})) as page:
        page.ask("attack")
        check_harmless(page)
        page.shoot(f"injection_{name}")
        shown = page.texts(".message.assistant .markdown")[0]
        if name == "markdown":
            assert "<script>window.pwned = 1</script>" in shown
        if name == "links":
            addresses = [each.get_attribute("href") for each in page.find(".messages a")]
            assert addresses == [
                "https://example.org/x.png",
                "https://example.org/auto",
                "https://example.org/%22onmouseover=%22window.pwned=1",
            ]
        if name == "latex":
            fixed = page.run(
                "return [...document.querySelectorAll('.formula, .formula *')]"
                ".filter((each) => getComputedStyle(each).position !== 'static').length"
            )
            assert fixed == 0
            assert page.run("return document.documentElement.scrollWidth <= innerWidth")
        if name == "code":
            assert HTML in page.texts(".code pre")[0]


def test_questions_and_titles(browser: Chromium) -> None:
    with page_of(browser, scripted_engine({})) as page:
        page.ask(HTML)
        check_harmless(page)
        assert page.texts(".typed") == [HTML]
        assert page.texts("nav li .title")[0].startswith("<script>window.pwned")
        assert page.driver.title.startswith("<script>")
        page.press("Delete conversation")
        page.wait(lambda: page.find("dialog"))
        check_harmless(page)


def test_reasoning_and_tools(browser: Chromium) -> None:
    call = json.dumps({"name": "add", "arguments": {HTML: HTML + LATEX}})
    said = f"<think>\n{HTML}{LINKS}{LATEX}</think>\n<tool_call>\n{call}\n</tool_call>"
    with page_of(browser, scripted_engine({"attack": said, "tool\n": HTML})) as page:
        page.press("Settings")
        page.fill("Tools", json.dumps([TOOL]))
        page.press_text("Save")
        page.ask("attack")
        check_harmless(page)
        page.shoot("injection_tools")
        assert HTML in page.texts(".reasoning .typed")[0]
        assert json.loads(page.texts(".call pre")[0]) == {HTML: HTML + LATEX}
        page.type(".results textarea", HTML)
        page.press_text("Send result")
        page.wait(lambda: page.texts(".message.tool pre") == [HTML])
        page.wait_for_answer()
        assert page.texts(".message.assistant .markdown")[-1] == HTML
        check_harmless(page)


def hostile_file() -> str:
    """Exported conversations, with markup and with objects that are none of ours."""
    message = {
        "id": "a",
        "parent": None,
        "role": "assistant",
        "content": HTML + LINKS + LATEX,
        "reasoning": HTML,
        "error": HTML,
        "model": HTML,
        "finish": HTML,
        "toolCalls": [{"id": HTML, "name": HTML, "arguments": HTML}],
        "attachments": [{"name": HTML, "text": HTML}],
        "stats": {"completionTokens": {"__html": HTML}},
    }
    element = {"type": "img", "props": {"onerror": "window.pwned=1"}, "__html": HTML}
    twin = {**message, "id": "b", "content": element, "dangerouslySetInnerHTML": element}
    loop = {**message, "id": "c", "parent": "c"}
    conversations = [
        {"title": HTML, "messages": [message, twin, loop, None, 3], "leaf": "a"},
        {"title": element, "id": "__proto__", "messages": {"length": 3}, "leaf": element},
        None,
    ]
    return json.dumps({"format": "rtp-llm.conversations", "conversations": conversations})


def test_imported_files(browser: Chromium) -> None:
    with page_of(browser, scripted_engine({})) as page:
        file = page.downloads / "attack.json"
        file.write_text(hostile_file())
        page.one("nav input[type=file]").send_keys(str(file))
        page.wait(lambda: len(page.find("nav li")) == 3)
        titles = page.texts("nav li .title")
        assert sorted(titles) == sorted([HTML, *["Imported conversation"] * 2])
        page.find("nav li .title")[titles.index(HTML)].click()
        page.wait(lambda: page.find(".message.assistant"))
        check_harmless(page)
        page.shoot("injection_import")
        assert page.texts(".message.assistant .siblings > span") == ["1 / 2"]
        page.press("Next version")
        check_harmless(page)
        page.driver.refresh()
        page.wait(lambda: len(page.find("nav li")) == 3)
        check_harmless(page)


def test_the_browser_itself_makes_no_html_of_text(browser: Chromium) -> None:
    """What holds if the page had a defect: trusted types and the policy."""
    with page_of(browser, scripted_engine({})) as page:
        for attempt in (
            "document.body.innerHTML = '<b>x</b>'",
            "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')",
            "document.createElement('script').text = 'window.pwned = 1'",
        ):
            told = page.run(
                f"try {{ {attempt}; return 'done' }} catch (error) {{ return error.name }}"
            )
            assert told == "TypeError", attempt
        page.run(
            "const image = document.createElement('img'); image.src = 'https://example.org/x.png';"
            "document.body.append(image); const style = document.createElement('style');"
            "style.textContent = 'body { display: none }'; document.body.append(style)"
        )
        blocked = page.wait(page.complaints)
        assert any("Content Security Policy" in each for each in blocked)
        assert page.run("return getComputedStyle(document.body).display") == "block"
