"""The report's style sheet; a Python string, because a Flower app bundle leaves other files out.

Hues and their lightness were chosen together, so that any two stay apart (CIE 1976 distance of 20 or more) in full
colour vision and as people with deuteranopia and protanopia see them (Machado et al. 2009). Markers differ as well.
"""

from __future__ import annotations

CSS = """
:root {
  color-scheme: light dark;
  --page: #fbfaf8; --card: #ffffff; --ink: #1c1e22; --soft: #5c6069; --rule: #dedbd4; --faint: #efede8;
  --alarm: #a3341f; --alarm-bg: #fbeeea; --calm: #0b6b4e;
  --none: #1c1e22;
  --d0: #bf5e40; --d1: #145f58; --d2: #d92c84; --d3: #948a00; --d4: #4c3119;
  --dp0: #123f8c; --dp1: #4a80cf;
  --sans: ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "Liberation Sans",
    sans-serif;
  --mono: ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "Liberation Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #131518; --card: #1a1d21; --ink: #e9e6df; --soft: #a2a5ab; --rule: #33373d; --faint: #22262b;
    --alarm: #ff9c85; --alarm-bg: #33201c; --calm: #5ccfa6;
    --none: #e9e6df;
    --d0: #e8701a; --d1: #2ac87c; --d2: #d06aa2; --d3: #f9e31f; --d4: #8c7b6b;
    --dp0: #4a86de; --dp1: #a9c9ff;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 var(--sans); }
main { max-width: 1400px; margin: 0 auto; padding: 28px 24px 40px; }
h1 { font-size: clamp(1.7rem, 4vw, 2.5rem); line-height: 1.12; letter-spacing: -.022em; margin: 6px 0 10px; overflow-wrap: anywhere;
  font-weight: 700; text-wrap: balance; }
h2 { font-size: 1.3rem; line-height: 1.2; letter-spacing: -.012em; margin: 0; font-weight: 680; }
h3, .glance h2 { font-size: 1rem; margin: 14px 0 6px; font-weight: 650; }
p { margin: 0 0 10px; }
code, pre, .code { font-family: var(--mono); font-size: .86em; }
code { overflow-wrap: break-word; }
pre { background: var(--faint); padding: 12px 14px; border-radius: 6px; overflow-x: auto; }
a { color: inherit; text-decoration-color: var(--soft); text-underline-offset: 3px; }
.term { text-decoration: underline dotted; }
.kicker { color: var(--soft); font-size: .8rem; letter-spacing: .08em; text-transform: uppercase; font-weight: 600; margin: 0; }
.facts { color: var(--soft); margin: 0; max-width: 120ch; }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; margin-top: 18px; padding-top: 12px; border-top: 1px solid var(--rule);
  font-size: .88rem; }
nav a { color: var(--soft); text-decoration: none; } nav a:hover { color: var(--ink); text-decoration: underline; }
section { margin-top: 26px; scroll-margin-top: 16px; }
section > header { display: grid; grid-template-columns: 250px 1fr; gap: 6px 28px; border-top: 2px solid var(--ink);
  padding-top: 10px; margin-bottom: 14px; }
section > header p { color: var(--soft); font-size: .9rem; max-width: 112ch; margin: 0; }
section > header details { margin: 2px 0 0; } section > header summary { font-size: .86rem; padding: 0; }
.study { margin-top: 64px; font-size: 1.6rem; }
.banner { border-left: 4px solid var(--soft); background: var(--faint); padding: 10px 16px; border-radius: 0 6px 6px 0;
  margin: 18px 0 0; font-size: .95rem; overflow-wrap: anywhere; }
.banner.alarm { border-color: var(--alarm); background: var(--alarm-bg); }
.banner ul { margin: 4px 0 0; padding-left: 18px; }
.swatch { display: inline-block; width: 14px; margin-right: 6px; text-align: center; font-size: .85em; font-weight: 400; }
.swatch::before { content: attr(data-mark); content: attr(data-mark) / ""; }
.soft { color: var(--soft); } .small { font-size: .84rem; } .after { margin-top: 10px; }
.fact { display: inline-block; margin-right: 16px; }

.glance { display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 14px 28px; align-items: start; margin-top: 18px; }
.glance .tiles { grid-template-columns: repeat(3, 160px); } .glance .target { font-size: .9rem; }
.glance .target > figcaption { width: 0; min-width: 100%; }
/* With a column for the kind of message, the table needs the room of smaller pictures. */
.glance.apart .tiles { grid-template-columns: repeat(3, 96px); } .glance.apart { gap: 14px 20px; }
dl { columns: 2 420px; margin: 0; font-size: .9rem; } dt { font-weight: 650; } dd { margin: 0 0 8px; break-before: avoid; }
.skip { position: absolute; left: -999em; } .skip:focus { left: 16px; top: 8px; background: var(--card); padding: 6px 12px;
  z-index: 9; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.word { display: inline-block; padding: 1px 9px; border-radius: 99px; border: 1.5px solid var(--soft); font-size: .84rem;
  font-weight: 650; white-space: nowrap; }
.word.recognisable { background: var(--alarm); border-color: var(--alarm); color: var(--card); }
.word.identifiable, .word.inferred { border-color: var(--alarm); color: var(--alarm); }
.word.nothing-found { border-color: var(--calm); color: var(--calm); }
.word.unknown { border-style: dashed; color: var(--soft); }

.scroll { overflow-x: auto; border: 1px solid var(--rule); border-radius: 8px; background: var(--card); max-width: 100%;
  -webkit-overflow-scrolling: touch; }
/* A shadow at the right edge while columns are hidden there. */
.scroll.more { box-shadow: inset -34px 0 14px -14px color-mix(in oklab, var(--ink) 24%, transparent); }
/* Some systems hide scroll bars until one scrolls; a bar with a look of its own is always there. */
.scroll::-webkit-scrollbar { height: 11px; width: 11px; background: var(--faint); border-radius: 0 0 8px 8px; }
.scroll::-webkit-scrollbar-thumb { background: color-mix(in oklab, var(--soft) 60%, var(--faint)); border-radius: 6px;
  border: 2px solid var(--faint); }
.scroll.tall { max-height: 620px; overflow-y: auto; }
table { border-collapse: collapse; width: 100%; font-size: .84rem; font-variant-numeric: tabular-nums; line-height: 1.35; }
th, td { padding: 8px 7px; text-align: left; vertical-align: top; border-bottom: 1px solid var(--rule); }
tbody tr:last-child > * { border-bottom: 0; }
thead th { font-weight: 600; color: var(--soft); font-size: .76rem; vertical-align: bottom; background: var(--card); }
thead td { background: var(--card); padding-bottom: 0; border-bottom: 0; }
.tall thead { position: sticky; top: 0; z-index: 1; } .tall thead th { box-shadow: inset 0 -1px var(--rule); }
thead th.num { white-space: normal; }
thead tr.group th { border-bottom: 0; padding-bottom: 0; color: var(--ink); }
th.edge, td.edge { border-left: 1px solid var(--rule); }
.num { text-align: right; white-space: nowrap; }
td small { display: block; color: var(--soft); font-size: .88em; }
td.num small { white-space: nowrap; } td.num.folds small { white-space: normal; }
tbody th { font-weight: 600; min-width: 120px; }
tbody th code { font-weight: 500; } table code { font-size: .93em; }
.pairs th { width: 240px; }
.fitted table { font-size: .78rem; } .fitted th, .fitted td { padding: 7px 3px; } .fitted th:first-child { padding-left: 8px; }
.fitted tbody th { min-width: 142px; } .fitted tbody th code { font-size: .88em; }
tbody th small { display: block; color: var(--soft); font-weight: 400; margin: 0; }
td.tight code { overflow-wrap: normal; white-space: nowrap; }
.wide { min-width: 120px; } .verdict { min-width: 150px; } .attack { min-width: 190px; }
.text { max-width: 60ch; overflow-wrap: anywhere; }
td.status { white-space: nowrap; } .status.bad { color: var(--alarm); } .status.good { color: var(--calm); }
tr.doubt td:not(.status) { color: var(--soft); }

.chart { display: block; width: 100%; height: auto; font-family: var(--sans); overflow: visible;
  font-variant-numeric: tabular-nums; }
.chart .name text, .chart .note text { paint-order: stroke; stroke: var(--card); stroke-width: 3px; stroke-linejoin: round; }
.panel { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 18px 18px 12px; margin: 0;
  max-width: 520px; }
.panel figcaption { font-size: .88rem; font-weight: 600; margin-bottom: 8px; overflow-wrap: anywhere; }
.panel + .panel { margin-top: 16px; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr)); gap: 16px;
  margin-top: 16px; }

.strips { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(var(--strip), 100%), 1fr)); gap: 14px; }
.target { margin: 0; padding: 7px 10px; background: var(--card); border: 1px solid var(--rule); border-radius: 8px; }
.target > figcaption { color: var(--soft); font-size: .76rem; margin-bottom: 3px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(72px, 1fr)); gap: 8px; }
.tile { margin: 0; max-width: 170px; }
.tile img, .tile .empty { width: 100%; aspect-ratio: 1; display: block; border-radius: 3px; background: var(--faint);
  object-fit: contain; image-rendering: pixelated; }
.tile .empty { display: grid; place-items: center; color: var(--soft); font-size: .76rem; }
.tile figcaption { font-size: .76rem; line-height: 1.3; margin-top: 5px; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }
.tile figcaption b { display: block; font-weight: 650; }
.tile img { cursor: zoom-in; }
.tiles.large { position: fixed; inset: 0; z-index: 20; background: var(--page); padding: 4vmin; align-content: center;
  grid-template-columns: repeat(auto-fit, minmax(min(260px, 100%), 1fr)) !important; overflow: auto; }
.tiles.large .tile { max-width: none !important; } .tiles.large img { cursor: zoom-out; }
.tiles.large figcaption { font-size: 1rem; }
.filter { display: block; margin: 0 0 8px; padding: 5px 10px; width: min(280px, 100%); font: inherit; font-size: .86rem;
  color: inherit; background: var(--card); border: 1px solid var(--rule); border-radius: 6px; }
th button { all: unset; display: inline-block; min-width: 24px; cursor: pointer; font: inherit; color: inherit;
  text-align: inherit; }
th button:focus-visible, .scroll:focus-visible, .tile img:focus-visible {
  outline: 2px solid var(--soft); outline-offset: 2px; }
th[aria-sort] button::after { content: " ↑"; } th[aria-sort="descending"] button::after { content: " ↓"; }
.dense table { font-size: .7rem; } .dense thead th { font-size: .68rem; } .dense th, .dense td { padding: 6px 2px; }
.dense td.tight { min-width: 116px; } .dense .attack { min-width: 116px; } .dense td.tight code { white-space: normal; }
.dense td.tight code, .dense .attack code { font-size: .9em; overflow-wrap: anywhere; }
details { margin-top: 4px; } summary { cursor: pointer; color: var(--soft); font-size: .9rem; padding: 4px 0; }
details[open] > summary { margin-bottom: 10px; }

@media (max-width: 1100px) { .glance { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 860px) {
  main { padding: 26px 16px 60px; }
  section > header { grid-template-columns: 1fr; }
  .panel { padding: 14px 12px 10px; }
  .scroll tr > :first-child { position: sticky; left: 0; background: var(--card); box-shadow: inset -1px 0 var(--rule); }
  .scroll tbody th, .scroll td.tight { min-width: 104px; max-width: 132px; } td.tight code { white-space: normal;
    overflow-wrap: anywhere; }
}
@media (max-width: 620px) {
  .glance .tiles { grid-template-columns: repeat(3, minmax(0, 1fr)); }
  .glance.apart th:nth-child(2), .glance.apart td:nth-child(2) { display: none; }
  .glance .scroll th, .glance .scroll td { padding: 6px 4px; min-width: 0; } .glance table { font-size: .74rem; }
  .glance tbody th { max-width: 96px; } .glance .word { white-space: normal; padding: 0 5px; font-size: .74rem; }
  .tile figcaption { font-size: .7rem; }
}
@media print {
  @page { size: A4; margin: 10mm; }
  body { background: #fff; font-size: 11px; } main { max-width: none; padding: 0; } .tile { max-width: 84px; }
  .glance { grid-template-columns: minmax(0, 1fr); } .glance .tiles { grid-template-columns: repeat(3, 110px); }
  .scroll, .scroll.more, .scroll.tall { max-height: none; overflow: visible; border: 0; box-shadow: none; }
  section { break-inside: auto; margin-top: 14px; }
  table { font-size: 7.4pt; } th, td { padding: 3px 3px; }
  td.tight code, td.num, .num, td.num small, td.status { white-space: normal; }
  tbody th, .wide, .attack, .verdict { min-width: 0; } code { overflow-wrap: anywhere; }
  thead { display: table-header-group; } .tall thead { position: static; }
  .target, .panel, tr { break-inside: avoid; } nav, .skip, .filter { display: none; }
  h1, h2, h3, section > header, summary { break-after: avoid; } section > header { break-inside: avoid; }
  [id^="headline"] > header { break-inside: auto; break-after: auto; } .fitted > table { break-inside: avoid; }
  th button { display: contents; }
  details:not([open]) { display: none; } details[open] > summary { list-style: none; }
}
"""
