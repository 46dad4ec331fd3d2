"""Results as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OURS_COLOUR, _OTHER_COLOUR, _LIMIT_COLOUR = "#0b6e99", "#77838c", "#c8553d"


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Draw what the report holds, a panel each.

    Raises:
        ImportError: matplotlib is missing.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    results = report["results"]
    panels = [(panel, results[key]) for key, panel in _PANELS.items() if results.get(key)]
    if not panels:
        return
    num_rows = -(-len(panels) // 2)
    figure, axes = pyplot.subplots(num_rows, 2, figsize=(13, 3.4 * num_rows), squeeze=False)
    for axis, (panel, rows) in zip(axes.flat, panels, strict=False):
        _bars(axis, panel, rows)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    machine = report["machine"]
    figure.suptitle(
        f"{report['plan']['total_bytes'] / 2**30:g} GiB state, {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['file_system']}; median of "
        f"{report['plan']['rounds']} rounds, whiskers: all of them",
        fontsize=10,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


@dataclass(frozen=True, slots=True)
class _Panel:
    """What one panel shows: rates, or times where the bytes are not what takes time."""

    title: str
    shows_rate: bool = True


_PANELS = {
    "save": _Panel("Durable save"),
    "load_cold": _Panel("Load, page cache dropped"),
    "load_warm": _Panel("Load from page cache"),
    "small_save": _Panel("Durable save of many small tensors", shows_rate=False),
    "small_load_warm_safe": _Panel("Load of many small, weights_only=True", shows_rate=False),
    "small_load_warm_full": _Panel("Load of many small, weights_only=False", shows_rate=False),
}


def _bars(axis: Any, panel: _Panel, rows: Sequence[Mapping[str, Any]]) -> None:
    names = [row["method"] for row in rows]
    middle = [_value(panel, row, row["median_s"]) for row in rows]
    ends = [sorted(_value(panel, row, row[key]) for key in ("min_s", "max_s")) for row in rows]
    low = [max(0.0, m - end[0]) for m, end in zip(middle, ends, strict=True)]
    high = [max(0.0, end[1] - m) for m, end in zip(middle, ends, strict=True)]
    colours = [_colour(name) for name in names]
    axis.barh(names, middle, xerr=[low, high], color=colours, error_kw={"lw": 1, "capsize": 3})
    axis.invert_yaxis()
    axis.set_title(panel.title, fontsize=10)
    axis.set_xlabel("GB/s, more is better" if panel.shows_rate else "s, less is better", fontsize=9)
    axis.tick_params(labelsize=9)
    axis.set_xlim(0, max(end[1] for end in ends) * 1.15)
    for place, value in enumerate(middle):
        at = 0.02 * axis.get_xlim()[1]
        axis.text(at, place, f"{value:.2f}", va="center", fontsize=9, color="white", weight="bold")


def _value(panel: _Panel, row: Mapping[str, Any], seconds: float) -> float:
    """Give what the axis shows of a run that took so long."""
    moved_gb = row["gb_per_s"] * row["median_s"]
    return moved_gb / seconds if panel.shows_rate else seconds


def _colour(name: str) -> str:
    if name.startswith("gdsckpt"):
        return _OURS_COLOUR
    return _LIMIT_COLOUR if name.startswith(("fio", "naive")) else _OTHER_COLOUR
