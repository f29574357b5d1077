"""Grafana's schema requires some fields, and a reader needs words: both are in the dashboard."""

import json
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "packaging" / "monitoring" / "grafana.json"
# Required options, by type of panel, as in Grafana's published schema (foundation SDK 0.0.22).
REQUIRED = {
    "stat": {
        "colorMode",
        "graphMode",
        "justifyMode",
        "orientation",
        "percentChangeColorMode",
        "reduceOptions",
        "showPercentChange",
        "textMode",
        "wideLayout",
    },
    "timeseries": {"legend", "tooltip"},
}


@pytest.fixture(scope="module")
def board() -> dict[str, Any]:
    board: dict[str, Any] = json.loads(FILE.read_text())
    return board


def test_every_panel_has_what_the_schema_requires_and_says_what_it_shows(
    board: dict[str, Any],
) -> None:
    assert {"annotations", "panels", "schemaVersion", "templating", "time", "title"} <= set(board)
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len(panels) == 18
    for panel in panels:
        title = panel["title"]
        assert panel["description"], title
        options = panel["options"]
        assert set(options) == REQUIRED[panel["type"]], title
        if panel["type"] == "timeseries":
            assert set(options["legend"]) >= {"calcs", "displayMode", "placement", "showLegend"}
            assert set(options["tooltip"]) >= {"mode", "sort"}, title


def test_panels_lie_beside_one_another_and_ask_the_source_that_was_chosen(
    board: dict[str, Any],
) -> None:
    seen: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert seen.setdefault((x, y), panel["title"]) == panel["title"]
        for asked in (panel, *panel.get("targets", ())):
            if panel["type"] != "row":
                assert asked["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert names == ["datasource", "instance", "peer"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
