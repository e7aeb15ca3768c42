"""What the pages show is what the product has and does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_areal_eval.options.declarations import OPTIONS, Option

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

Suite = Callable[..., pytest.Pytester]


def python_blocks(text: str) -> list[str]:
    """The examples of a page."""
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_table_of_options_is_that_of_the_command_line() -> None:
    def shown(option: Option) -> str:
        return option.spelling if option.kind == "flag" else f"{option.spelling} {option.metavar}"

    table = README.partition("## Options")[2].partition("\n## ")[0]
    cells = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `--")]
    listed = [spelling for cell in cells for spelling in re.findall(r"`(--[^`]+)`", cell)]
    assert sorted(listed) == sorted(shown(option) for option in OPTIONS)


def test_the_first_example_runs_as_printed(suite: Suite) -> None:
    made = suite(source=python_blocks(README)[0])
    made.makeconftest("")
    answers = {"fr": "It is Paris.", "jp": "Kyoto"}
    rows = [json.dumps({"id": name, "completion": text}) for name, text in answers.items()]
    (made.path / "answers.jsonl").write_text("\n".join(rows))
    result = made.runpytest("--replay=answers.jsonl")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["gate PASS  test_capitals: reward 0.5000 >= 0.5*", "*2 passed, 1 missed*"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_can_be_read_and_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in python_blocks(text):
        if "->" not in block.splitlines()[0]:  # a signature alone
            compile(block, page.name, "exec")
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_library_example_is_the_shipped_file() -> None:
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    code = (ROOT / "examples" / "as_library.py").read_text(encoding="utf-8")
    assert code.partition('"""\n\n')[2] in python_blocks(page)
