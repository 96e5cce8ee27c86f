"""README.md and README.zh-CN.md say the same: commands, numbers, tables and links are compared, section by section."""

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ENGLISH, CHINESE = "README.md", "README.zh-CN.md"
NUM_FIRST_LINES = 5
"""The link to the other language stands within these."""

FENCE = re.compile(r"^(```+|~~~+)([^\n`]*)\n(.*?)^\1[ ]*$", re.M | re.S)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^()\s]+)\)")
NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
HAN = re.compile(r"[\u4e00-\u9fff]")


@dataclass
class Section:
    """A heading, and what stands below it up to the next one. Code blocks are left out of its text."""

    level: int
    heading: str
    text: str = ""
    blocks: list[tuple[str, str]] = field(default_factory=list)

    @property
    def prose(self) -> str:
        """Its text without code and without the targets of links."""
        return LINK.sub(r"\2", CODE.sub("", f"{self.heading}\n{self.text}"))

    @property
    def tables(self) -> list[list[int]]:
        """The number of cells in every row of every table."""
        found = re.findall(r"(?:^\|.*\|$\n?)+", self.text, re.M)
        return [[len(re.split(r"(?<!\\)\|", row)) - 2 for row in table.strip().splitlines()] for table in found]


def read(text: str) -> list[Section]:
    """The sections of a Markdown text; the first is what stands before any heading."""
    blocks: list[tuple[str, str]] = []

    def take(match: "re.Match[str]") -> str:
        blocks.append((match[2].strip(), match[3]))
        return f"\x00{len(blocks) - 1}\x00"

    sections = [Section(0, "")]
    for line in FENCE.sub(take, text).splitlines():
        if heading := re.match(r"(#+) (.+)", line):
            sections.append(Section(len(heading[1]), heading[2].strip()))
        elif block := re.fullmatch(r"\s*\x00(\d+)\x00", line):
            sections[-1].blocks.append(blocks[int(block[1])])
        else:
            sections[-1].text += line + "\n"
    return sections


def slug(heading: str) -> str:
    """The anchor that a heading gets where Markdown is shown."""
    return re.sub(r"[^\w\- ]", "", LINK.sub(r"\2", heading).lower()).replace(" ", "-")


def targets(sections: list[Section]) -> list[str]:
    """Where the links and images of each section point, an anchor in the same file by the number of its heading."""
    slugs = [slug(section.heading) for section in sections]
    found = []
    for section in sections:
        here = []
        for sign, _, target in LINK.findall(f"{section.heading}\n{section.text}"):
            if target.startswith("#"):
                assert target[1:] in slugs, f"no heading has the anchor {target}"
                target = f"heading {slugs.index(target[1:])}"
            here.append(sign + target)
        found.append(" ".join(sorted(target for target in here if target not in (ENGLISH, CHINESE))))
    return found


def differences(english: str, chinese: str) -> list[str]:
    """In what the two texts differ; nothing where one is the other's translation as far as that can be seen."""
    pair = read(english), read(chinese)
    levels = [[section.level for section in sections] for sections in pair]
    if levels[0] != levels[1]:
        return [f"levels of headings: {levels[0]} and {levels[1]}"]
    found = []
    for ours, theirs, our_links, their_links in zip(*pair, *map(targets, pair), strict=True):
        compared = {
            "code blocks": (ours.blocks, theirs.blocks),
            "inline code": (set(CODE.findall(ours.text)), set(CODE.findall(theirs.text))),
            "tables": (ours.tables, theirs.tables),
            "links": (our_links, their_links),
            "list items": tuple(len(re.findall(r"^\s*(?:-|\d+\.) ", text, re.M)) for text in (ours.text, theirs.text)),
            "numbers": (set(NUMBER.findall(ours.prose)), set(NUMBER.findall(theirs.prose))),
        }
        for what, (mine, other) in compared.items():
            if mine != other:
                only = f" ({mine - other} and {other - mine})" if isinstance(mine, set) else f": {mine} and {other}"
                found.append(f"{what} below {ours.heading!r}{only}")
    return found


@pytest.fixture(scope="module")
def english() -> str:
    return (ROOT / ENGLISH).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def chinese() -> str:
    return (ROOT / CHINESE).read_text(encoding="utf-8")


def test_both_say_the_same(english: str, chinese: str) -> None:
    assert differences(english, chinese) == []


def test_there_are_commands_to_compare(english: str) -> None:
    blocks = [block for section in read(english) for block in section.blocks]
    assert ("bash", "bash prepare.sh demo\n") in blocks
    assert len(blocks) == english.count("\n```") // 2
    assert sum(len(section.tables) for section in read(english)) == len(re.findall(r"^\|[-:| ]+\|$", english, re.M)) > 2


def test_each_links_to_the_other_in_its_first_lines(english: str, chinese: str) -> None:
    for text, other in ((english, CHINESE), (chinese, ENGLISH)):
        first = "\n".join(text.splitlines()[:NUM_FIRST_LINES])
        assert other in [target for _, _, target in LINK.findall(first)]


@pytest.mark.parametrize("name", [ENGLISH, CHINESE])
def test_relative_links_lead_somewhere(name: str) -> None:
    for _, _, target in LINK.findall((ROOT / name).read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("#"):
            assert (ROOT / target.partition("#")[0]).exists(), f"{name} links to {target}"


def test_every_paragraph_is_in_chinese(chinese: str) -> None:
    for section in read(chinese)[1:]:
        for paragraph in re.split(r"\n\s*\n|\n(?=[|>]|\s*(?:-|\d+\.) )", section.prose):
            words = re.findall(r"[A-Za-z]{2,}", paragraph)
            assert len(words) < 8 or len(HAN.findall(paragraph)) >= len(words), paragraph


def test_what_is_changed_in_one_alone_is_found(english: str, chinese: str) -> None:
    changes = {
        "code blocks": ("bash prepare.sh demo\n", "bash prepare.sh  demo\n"),
        "levels": ("\n## ", "\n### "),
        "links": ("](CONTRIBUTING.md)", "](CHANGELOG.md)"),
        "inline code": ("`config.json`", "`configuration.json`"),
        "tables": ("\n| `eager` |", "\n| `eager` | |"),
        "numbers": ("29500", "29501"),
    }
    for what, (old, new) in changes.items():
        assert Counter(old in text for text in (english, chinese)) == {True: 2}, f"{old!r} is no longer in both"
        (found, *_) = differences(english, chinese.replace(old, new, 1))
        assert found.startswith(what)
