"""A plan as one page of HTML that needs no network: tables, and plots as inline SVG."""

from __future__ import annotations

from html import escape

from gdsckpt._version import __version__
from gdsckpt.planning import plots, text
from gdsckpt.planning.advice import WARNING
from gdsckpt.planning.plan import Plan
from gdsckpt.planning.text import Section

_STYLE = """
:root { --ink: #20242a; --dim: #5d6570; --line: #e1e4e8; --soft: #f6f7f9; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 28px 20px 60px; color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 18px; margin: 34px 0 8px; }
.about { color: var(--dim); margin: 2px 0 20px; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px; }
.figure { background: var(--soft); border-radius: 8px; padding: 12px 14px; }
.figure b { display: block; font-size: 20px; } .figure span { color: var(--dim); font-size: 13px; }
.advice { border-left: 4px solid #0072b2; background: var(--soft); padding: 8px 14px;
  margin: 8px 0; border-radius: 0 6px 6px 0; }
.advice.warning { border-color: #d55e00; background: #fdf3ed; }
.advice b { text-transform: capitalize; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 16px; }
.plots svg { width: 100%; height: auto; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: 14px; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { color: var(--dim); font-weight: 600; } .right { text-align: right; white-space: nowrap; }
ul { padding-left: 18px; margin: 8px 0; } details { margin: 6px 0; } summary { cursor: pointer; }
footer { color: var(--dim); font-size: 13px; margin-top: 40px; }
@media print { body { max-width: none; } details { display: block; } }
"""

# Nothing is loaded from anywhere, even if a text from outside got past the escaping.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(plan: Plan) -> str:
    """Give the page.

    Raises:
        ConfigError: matplotlib is missing.
    """
    drawn = "\n".join(f"<div>{plots.panel_svg(plan, panel)}</div>" for panel in plots.PANELS)
    sections = [each for each in text.sections_of(plan) if each.title != "Advice"]
    name = escape(plan.scenario.name)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>Checkpoint plan: {name}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Checkpoint plan: {name}</h1>
<p class="about">{escape(plan.scenario.about)}</p>
<div class="figures">{_figures(plan)}</div>
<h2>Advice</h2>
{_advice(plan)}
<h2>Pictures</h2>
<div class="plots">
{drawn}
</div>
{"".join(map(_section, sections))}
<h2>Bills, line by line</h2>
{"".join(map(_details, text.bills(plan)))}
<h2>Published figures, and what they count</h2>
{"".join(map(_details, text.references()))}
<footer>gdsckpt {escape(__version__)}, <code>gdsckpt plan</code>. Bands are low to high; prices are
list prices of their date. This page is complete: it loads nothing.</footer>
</body>
</html>
"""


def _figures(plan: Plan) -> str:
    return "".join(
        f'<div class="figure"><span>{escape(name)}</span><b>{escape(value)}</b>'
        f"<span>{escape(more)}</span></div>"
        for name, value, more in text.headline(plan)
    )


def _advice(plan: Plan) -> str:
    if not plan.advice:
        return "<p>Nothing to object to.</p>"
    return "\n".join(
        f'<div class="advice{" warning" if each.level == WARNING else ""}">'
        f"<b>{escape(each.topic)}:</b> {escape(each.text)}</div>"
        for each in plan.advice
    )


def _section(section: Section) -> str:
    return f"<h2>{escape(section.title)}</h2>\n{_body(section)}"


def _details(section: Section) -> str:
    return f"<details><summary>{escape(section.title)}</summary>{_body(section)}</details>\n"


def _body(section: Section) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in section.lines)
    return _table(section) + (f"<ul>{lines}</ul>\n" if lines else "")


def _table(section: Section) -> str:
    if not section.head:
        return ""
    right = frozenset(section.right)

    def cells(tag: str, row: tuple[str, ...]) -> str:
        styles = (' class="right"' if n in right else "" for n in range(len(row)))
        return "".join(
            f"<{tag}{style}>{escape(cell)}</{tag}>" for style, cell in zip(styles, row, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in section.rows)
    head = cells("th", section.head)
    return f'<div class="table"><table><tr>{head}</tr>\n{body}</table></div>\n'
