"""The HTML report in a real browser: what it shows, what it refuses to run, and that it fetches nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Browser, missing
from support.runs import episode, transcript, write_run

from pytest_areal_eval.api import EpisodeStatus
from pytest_areal_eval.cli import main
from pytest_areal_eval.report.export.html import data
from pytest_areal_eval.report.export.html.charts import histogram, in_flight
from pytest_areal_eval.report.saved import read_run

HOSTILE = [
    "<script>document.title='owned'</script>",
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "<!--<script>",
    "]]>${document.title='owned'}`",
    "\x1b[2J\x00\ud800\u202egnp.exe",
    "javascript:document.title='owned'",
]


def report(folder: Path, *arguments: str) -> Path:
    assert main(["report", str(folder), "--html", str(folder / "r.html"), *arguments]) == 0
    return folder / "r.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if missing():
        assert "CI" not in os.environ, missing()
        pytest.skip(missing())
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 items of 3 episodes and a second evaluation with one error."""
    episodes = [
        episode(
            f"i{n}",
            k,
            float(n % 4 > k),
            completion=f"<think>because {n}</think>\nso {n} in episode {k}",
            extracted=f"x{n}",
            gold=f"y{n}",
            output_tokens=n + 1,
            latency_s=0.5 + n / 100,
            started_at=1.7e9 + n,
            replica=f"r{n % 2}",
        )
        for n in range(400)
        for k in range(3)
    ]
    wrong = episode("e", reward=None, status=EpisodeStatus.WORKFLOW_ERROR, error="boom", traceback="File x, line 1")
    folder = tmp_path_factory.mktemp("run")
    columns = {f"i{n}": {"level": n % 5, "family": f"f{n % 3}"} for n in range(400)}
    info = {
        "gates": [{"evaluation": "gsm", "gate": "reward >= 0.4", "outcome": "pass", "message": "reward 0.5000 >= 0.4"}]
    }
    write_run(folder, {"gsm": episodes, "other": [wrong, episode("f", reward=1.0)]}, columns=columns, info=info)
    return report(folder)


def test_the_page_asks_for_nothing_and_fits_in_one_file(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"(?:src|href|action)\s*=|url\(|@import|https?:(?!//www\.w3\.org/2000/svg)", text)
    assert "default-src &#x27;none&#x27;; script-src" in text


def test_an_evaluations_name_is_text_on_the_page(tmp_path: Path) -> None:
    """A parameter's id is whatever its author wrote."""
    text = report(write_run(tmp_path, {'e["><script>hostile</script>]': [episode("i")]})).read_text()
    assert "&lt;script&gt;hostile" in text
    assert "<script>hostile" not in text


def test_items_are_listed_filtered_sorted_and_only_those_in_view_are_drawn(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.run("document.getElementById('count').textContent") == "400 items"
    assert browser.run("document.querySelectorAll('.row').length") < 60
    browser.type("#search", "level=3 family=f1")
    assert browser.run("document.getElementById('count').textContent") == "26 of 400 items"
    browser.do("const s = document.getElementById('search'); s.value = ''; s.dispatchEvent(new Event('input'))")
    browser.do("[...document.querySelectorAll('#head span')].find(s => s.textContent.startsWith('tokens')).click()")
    browser.do("[...document.querySelectorAll('#head span')].find(s => s.textContent.startsWith('tokens')).click()")
    assert browser.run("document.querySelector('.row span').textContent") == "i399"
    browser.do("const o = document.getElementById('outcome'); o.value = 'mixed'; o.dispatchEvent(new Event('change'))")
    assert browser.run("document.getElementById('count').textContent") == "200 of 400 items"
    assert browser.console() == []


def test_scrolling_to_the_end_draws_the_last_item(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.do("document.getElementById('viewport').scrollTop = 1e9")
    browser.wait("[...document.querySelectorAll('.row')].some(r => r.textContent.startsWith('i399'))", 10)


def test_a_click_shows_an_items_episodes(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.do("document.querySelectorAll('.row')[1].click()")
    browser.wait("document.getElementById('completion')", 10)
    assert browser.run("document.getElementById('prompt').textContent") == "question i1"
    assert browser.run("document.getElementById('completion').textContent") == "so 1 in episode 0"
    assert browser.run("document.getElementById('reasoning').textContent") == "because 1"
    assert browser.run("document.getElementById('extracted').textContent") == "x1"
    assert browser.run("document.getElementById('gold').textContent") == "y1"
    browser.do("document.querySelectorAll('.episodes button')[2].click()")
    browser.wait("document.getElementById('completion').textContent === 'so 1 in episode 2'", 10)
    browser.do("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft', bubbles: true}))")
    browser.wait("document.getElementById('completion').textContent === 'so 1 in episode 1'", 10)


def test_an_item_has_an_address_and_an_error_is_shown(browser: Browser, page: Path) -> None:
    browser.open(page, "#1/e")
    browser.wait("document.getElementById('completion')", 10)
    text = browser.run("document.getElementById('item').textContent")
    assert "boom" in text
    assert "File x, line 1" in text
    assert browser.run("document.querySelector('nav .on').textContent") == "other"


def test_an_agents_conversation_shows_its_tool_calls(browser: Browser, tmp_path: Path) -> None:
    agent = episode("a", 0, 1.0, transcript=transcript(), completion="3 times 4 is 12.", requests=2)
    browser.open(report(write_run(tmp_path, {"gsm": [agent]})), "#0/a")
    browser.wait("document.getElementById('conversation')", 10)
    assert browser.run("document.querySelector('#conversation summary').textContent") == (
        "Conversation (5 messages, 1 tool call)"
    )
    roles = "[...document.querySelectorAll('.turn h3')].map(h => h.firstChild.textContent)"
    assert browser.run(roles) == ["system", "user", "assistant", "tool", "assistant"]
    assert browser.run("document.querySelector('pre.call').textContent") == 'multiply({"a": 3, "b": 4})'


def test_a_group_of_the_chart_filters_the_table(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.run("document.querySelectorAll('.card').length") == 4
    browser.do("document.querySelector('.card .hit').dispatchEvent(new MouseEvent('click'))")
    assert browser.run("document.getElementById('count').textContent") == "80 of 400 items"
    browser.click("#group")
    assert browser.run("document.getElementById('count').textContent") == "400 items"


def test_nothing_that_a_model_or_a_dataset_says_is_run(browser: Browser, tmp_path: Path) -> None:
    places = ("prompt", "completion", "reasoning", "error", "traceback", "extracted", "gold", "replica")
    failed = {"reward": None, "status": EpisodeStatus.WORKFLOW_ERROR}
    episodes = [
        episode(f"x{n}", **failed, **dict.fromkeys(places, text), transcript=transcript(text))
        for n, text in enumerate(HOSTILE)
    ]
    columns = {f"x{n}": {"col": text.replace("\ud800", "")} for n, text in enumerate(HOSTILE)}
    info = {
        "models": {HOSTILE[0]: {}, HOSTILE[1]: {}},
        "command_line": HOSTILE[:5],
        "gates": [{"evaluation": HOSTILE[2], "gate": "g", "outcome": HOSTILE[2], "message": HOSTILE[0]}],
    }
    right = [episode(f"x{n}", 0, 1.0) for n in range(len(HOSTILE))]
    path = report(write_run(tmp_path, {HOSTILE[1]: episodes, "fine": right}, columns=columns, info=info))
    browser.open(path)
    assert browser.run("document.scripts.length") == 5
    for n, text in enumerate(HOSTILE):
        browser.do(f"location.hash = ''; document.querySelectorAll('.row')[{n}].click()")
        browser.wait(f"document.querySelector('#item h2')?.textContent === 'x{n}'", 10)
        shown = browser.run("document.getElementById('completion').textContent")
        assert shown.replace("\x00", "").replace("?", "") == text.replace("\x00", "").replace("\ud800", "")
    assert browser.run("document.title").endswith(f"on {HOSTILE[0]}, {HOSTILE[1]}".split("/")[-1])
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert browser.console() == []


def test_only_the_longest_texts_are_cut_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C101: 10,000 answers of 32k tokens must still be a page."""
    monkeypatch.setattr(data, "ALL_TEXTS_CHARS", 12_000)
    folder = write_run(tmp_path, {"gsm": [episode("a", completion="x" * 100), episode("b", completion="y" * 90_000)]})
    run = read_run(folder)
    limit = data.text_limit(list(run.evaluations.values()))
    assert limit == 11_900
    (chunk,) = data.chunks(run.evaluations["gsm"], limit)
    assert chunk[0]["episodes"][0]["completion"] == "x" * 100
    assert "[... 78,100 characters are left out here" in chunk[1]["episodes"][0]["completion"]


def test_items_are_in_the_order_of_the_dataset_else_of_their_numbers(tmp_path: Path) -> None:
    episodes = [episode(i) for i in ("i10", "i9", "i2")]
    known = read_run(write_run(tmp_path / "a", {"gsm": episodes}, columns={"i9": {}, "i10": {}, "i2": {}}))
    assert data.ordered(known.evaluations["gsm"]) == ["i9", "i10", "i2"]
    unknown = read_run(write_run(tmp_path / "b", {"gsm": episodes}))
    assert data.ordered(unknown.evaluations["gsm"]) == ["i2", "i9", "i10"]


def test_histograms_count_every_episode_once() -> None:
    episodes = [episode(str(n), reward=float(n % 2), output_tokens=n * n) for n in range(100)]
    found = histogram(episodes, lambda e: e.output_tokens, 1.0)
    assert (sum(found["right"]), sum(found["other"]), found["max"]) == (50, 50, 9801)
    assert sum(histogram([episode("x", output_tokens=0)], lambda e: e.output_tokens, 1.0)["other"]) == 1


def test_episodes_in_flight_add_up_to_the_time_they_took() -> None:
    episodes = [episode(str(n), started_at=100.0 + n, latency_s=2.0, replica=f"r{n % 10}") for n in range(50)]
    found = in_flight(episodes)
    assert sum(map(sum, found["series"].values())) * found["step"] == pytest.approx(100.0, rel=0.01)
    assert list(found["series"])[-1] == "2 more"


def test_a_run_without_a_whole_item_has_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path, {"gsm": []})
    assert main(["report", str(folder)]) == 2
    assert "has no item with all of its episodes" in capsys.readouterr().err
