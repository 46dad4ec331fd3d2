"""Results as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_OURS_COLOUR, _OTHER_COLOUR, _LIMIT_COLOUR = "#0b6e99", "#9aa5ad", "#c8553d"


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Draw what the report holds, a panel each.

    Raises:
        ImportError: matplotlib is missing.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    results = report["results"]
    panels = [(title, results[key]) for key, title in _PANELS.items() if results.get(key)]
    if not panels:
        return
    num_rows = -(-len(panels) // 2)
    figure, axes = pyplot.subplots(num_rows, 2, figsize=(13, 3.4 * num_rows), squeeze=False)
    for axis, (title, rows) in zip(axes.flat, panels, strict=False):
        _bars(axis, title, rows)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    machine = report["machine"]
    figure.suptitle(
        f"{report['plan']['total_bytes'] / 2**30:g} GiB state, {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['file_system']}; median of "
        f"{report['plan']['rounds']} rounds, whiskers from slowest to fastest",
        fontsize=10,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


_PANELS = {
    "save": "Durable save, GB/s",
    "load_cold": "Load with page cache dropped, GB/s",
    "load_warm": "Load from page cache, GB/s",
    "small_save": "Durable save of small tensors, GB/s",
    "small_load_warm_safe": "Load of small tensors, weights_only=True, from page cache, GB/s",
    "small_load_warm_full": "Load of small tensors, weights_only=False, from page cache, GB/s",
}


def _bars(axis: Any, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    names = [row["method"] for row in rows]
    middle = [row["gb_per_s"] for row in rows]
    # Rates of the slowest and fastest round, as distances from the median.
    moved = [row["gb_per_s"] * row["median_s"] for row in rows]
    low = [max(0.0, m - g / row["max_s"]) for m, g, row in zip(middle, moved, rows, strict=True)]
    high = [max(0.0, g / row["min_s"] - m) for m, g, row in zip(middle, moved, rows, strict=True)]
    colours = [_colour(name) for name in names]
    axis.barh(names, middle, xerr=[low, high], color=colours, error_kw={"lw": 1, "capsize": 3})
    axis.invert_yaxis()
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("GB/s, more is better", fontsize=9)
    axis.tick_params(labelsize=9)
    axis.set_xlim(0, max(m + h for m, h in zip(middle, high, strict=True)) * 1.15)
    for place, value in enumerate(middle):
        axis.text(0.02 * axis.get_xlim()[1], place, f"{value:.2f}", va="center", fontsize=8)


def _colour(name: str) -> str:
    if name.startswith("gdsckpt"):
        return _OURS_COLOUR
    return _LIMIT_COLOUR if name.startswith(("fio", "naive")) else _OTHER_COLOUR
