"""Text, pictures and the page of a plan."""

import dataclasses
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from gdsckpt.errors import ConfigError
from gdsckpt.planning import html, plots, scenario, text
from gdsckpt.planning.plan import make_plan
from gdsckpt.planning.simulate import SimulationSettings


@pytest.fixture(scope="module")
def plan():
    return make_plan(scenario.ready_made("1t-mlperf"))


def rows_of(plan, title):
    (section,) = [each for each in text.sections_of(plan) if each.title.startswith(title)]
    return section


def test_sections_have_as_many_cells_as_headings(plan):
    for section in (*text.sections_of(plan), *text.bills(plan), *text.references()):
        assert all(len(row) == len(section.head) for row in section.rows), section.title
        assert all(number < len(section.head) for number in section.right)
        assert section.rows or section.lines


def test_size_section_adds_up(plan):
    section = rows_of(plan, "One checkpoint")
    assert section.rows[-1][:3] == ("together", "14", "18 TB")
    assert [row[1] for row in section.rows[:-1]] == ["2", "4", "4", "4"]


def test_cadence_section_shows_the_simulation():
    settings = SimulationSettings(num_runs=20, run_s=86400.0)
    found = make_plan(scenario.ready_made("small"), simulation=settings)
    section = rows_of(found, "Cadence")
    assert section.head == ("the time", "closed form", "simulated")
    assert any(line.startswith("simulated 20 runs of 1 d (seed 1)") for line in section.lines)


def test_references_show_the_published_figures():
    said = {row[0]: row for section in text.references() for row in section.rows}
    assert said["70B, rule of 14 bytes"][1:4] == ("980 GB", "980 GB", "+0.0 %")
    assert said["rate of 15 TB in 5 s"][1:4] == ("3.6 TB/s", "3 TB/s", "+20.0 %")
    assert said["seconds of 3.2 TB at 70 GB/s"][1] == "46 s"
    assert any(row[1] == "521 GB" for row in said.values())
    assert {"105 GB", "912 GB", "5.29 TB", "18 TB"} <= {row[1] for row in said.values()}


def test_headline_says_what_matters(plan):
    names = [name for name, _, _ in text.headline(plan)]
    assert names[:3] == ["checkpoint", "stall of a save", "upload"]


def test_png_is_one(plan):
    raw = plots.png(plan)
    assert raw.startswith(b"\x89PNG\r\n\x1a\n")


def test_svg_is_xml_and_the_same_each_time(plan):
    raw = plots.svg(plan)
    assert ElementTree.fromstring(raw).tag == "{http://www.w3.org/2000/svg}svg"
    assert raw == plots.svg(plan)


@pytest.mark.parametrize("panel", plots.PANELS)
@pytest.mark.parametrize(
    "values",
    [
        {"saves": {"interval": "1s", "mode": "sync"}},
        {"saves": {"interval": "60d"}},
        {"saves": {"interval": "5min", "back_pressure": "skip", "in_flight": "1"}},
        {"model": {"optimizer": "adafactor", "checkpoint": "1MB..1GB..2GB"}},
        {"model": {"optimizer": "none"}, "cost": {"keep_uploads": 1, "keep_every": 1}},
    ],
    ids=["fast", "slow", "skip", "uncertain", "weights"],
)
def test_panel_can_draw_extremes(values, panel):
    inputs = scenario.ready_made("small").with_values(values, is_flags=True)
    svg = plots.panel_svg(make_plan(inputs), panel)
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"


def test_pictures_without_matplotlib_say_what_to_install(plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'gdsckpt\[plan\]'") as raised:
        plots.png(plan)
    assert raised.value.field == "plot"


class Page(HTMLParser):
    """Collects what a browser would load, and checks that elements are closed."""

    EMPTY = frozenset({"meta", "path", "use", "rect", "br"})

    def __init__(self, page):
        super().__init__()
        self.loaded, self.open, self.text = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag not in self.EMPTY:
            self.open.append(tag)
        for name, value in attrs:
            is_inside = value and value.startswith("#")
            if name in ("src", "href", "xlink:href", "data", "action") and not is_inside:
                self.loaded.append((tag, value))
        assert tag not in ("script", "iframe", "object", "link")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_page_is_complete_and_loads_nothing(plan):
    raw = html.page(plan)
    page = Page(raw)
    assert page.loaded == []
    assert page.open == []
    assert "url(http" not in raw
    assert "@import" not in raw
    assert raw.count("<svg") == 4
    assert "18 TB" in "".join(page.text)


def test_page_escapes_what_the_user_wrote(plan):
    bad = "<script>alert('1')</script>"
    named = dataclasses.replace(
        plan, scenario=dataclasses.replace(plan.scenario, name=bad, about=f'{bad}" & $x_1$')
    )
    raw = html.page(named)
    assert bad not in raw
    assert "&lt;script&gt;" in raw


def test_picture_takes_any_text_of_the_user(plan):
    named = dataclasses.replace(
        plan, scenario=dataclasses.replace(plan.scenario, name="$x", about=r"\frac{$ <b> & $")
    )
    assert plots.svg(named)
