"""What the page of a scored folder adds to the house style."""

PAGE_STYLE = """\
:root {
  --map: .8; --mark: #00e5ff; --warning: #9a5b00;
  --bar-abnormal: #b8500c; --bar-normal: #2a7d62; --bar-scored: #4a7ea5; --bar-out: #7a5aa6;
  --prototype-0: #1f5f8b; --prototype-1: #3f82b3; --prototype-2: #6aa5d0; --prototype-3: #9dc6e6;
  --memory-0: #8f4a06; --memory-1: #bf6a17; --memory-2: #df9344; --memory-3: #f1bd86;
  --appearance: #6d8a3a;
  --out: #ebe4f5; --out-text: #4d3180; --error: #fbe3e3; --error-text: #8c1d1d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --warning: #e0a53f;
    --bar-abnormal: #e58a4a; --bar-normal: #4fae8e; --bar-scored: #74a9d0; --bar-out: #a98bd6;
    --out: #322449; --out-text: #d2bdf2; --error: #4a1f1f; --error-text: #f5b5b5;
  }
}
html { scroll-padding-top: 4rem; }
a { color: var(--accent); text-underline-offset: .15em; }
h4 { margin: .9rem 0 .3rem; font-size: .85rem; font-weight: 600; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.warning { margin-top: .75rem; border-left-color: var(--warning); }
.quiet { color: var(--quiet); font-size: .9rem; }
.facts { margin-top: 1.25rem; }
.facts.long { grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); }
.facts.long dd { font-weight: 400; font-size: .92rem; }
.chip.out-of-domain { background: var(--out); color: var(--out-text); }
.chip.error { background: var(--error); color: var(--error-text); }
.filters, .tools {
  display: flex; flex-wrap: wrap; align-items: center; gap: .6rem 1.5rem; margin-bottom: .8rem;
  font-size: .9rem;
}
.filters input[type=search], select {
  padding: .3rem .5rem; border: 1px solid var(--line); border-radius: 5px; font: inherit;
  background: var(--sheet); color: var(--text);
}
.filters label, .tools label { display: flex; align-items: center; gap: .5rem; }
input[type=checkbox], input[type=range] { accent-color: var(--accent); }
.tools {
  position: sticky; top: 0; z-index: 2; margin: 0 -.5rem 1rem; padding: .6rem .5rem;
  background: var(--page); border-bottom: 1px solid var(--line);
}
.tools output { min-width: 3.2rem; font-variant-numeric: tabular-nums; }
.tools .keys { margin-left: auto; color: var(--quiet); font-size: .85rem; }
kbd {
  padding: 0 .35rem; border: 1px solid var(--line); border-radius: 3px; background: var(--sheet);
  font: inherit; font-size: .8rem;
}
#cases .scroll { max-height: 34rem; overflow: auto; }
#table thead th { position: sticky; top: 0; z-index: 1; padding: 0; background: var(--sheet); }
#table thead th::after {
  position: absolute; inset: auto 0 0; border-bottom: 1px solid var(--line); content: "";
}
#table thead button {
  width: 100%; padding: .6rem 1rem; border: 0; background: none; color: inherit; font: inherit;
  text-align: inherit; cursor: pointer; white-space: nowrap;
}
#table thead button::after { content: " \\2195"; opacity: .35; }
#table thead [aria-sort=ascending] button::after { content: " \\2191"; opacity: 1; }
#table thead [aria-sort=descending] button::after { content: " \\2193"; opacity: 1; }
#table th, #table td { padding: .4rem 1rem; }
#table thead th { padding: 0; }
#table tbody th { width: 42%; min-width: 10rem; text-align: left; overflow-wrap: anywhere; }
#table td:nth-child(2), #table th:nth-child(2), #table .remark, #table th:last-child {
  text-align: left;
}
#table .remark {
  min-width: 12rem; color: var(--quiet); font-size: .85rem; overflow-wrap: anywhere;
}
#table .remark:empty { min-width: 0; }
.chart svg { width: 100%; max-width: 56rem; height: auto; margin: auto; display: block; }
.chart ul.keys { justify-content: center; }
.chart {
  padding: 1rem 1.25rem; background: var(--sheet); border: 1px solid var(--line);
  border-radius: 8px;
}
.chart text { fill: var(--quiet); font-size: 12px; }
.chart .mid { text-anchor: middle; }
.chart .end { text-anchor: end; }
.chart .strong { fill: var(--text); font-weight: 500; }
.axis { stroke: var(--quiet); fill: none; }
.grid { stroke: var(--line); fill: none; }
.threshold { stroke: var(--text); stroke-width: 1.5; stroke-dasharray: 5 4; fill: none; }
rect.abnormal { fill: var(--bar-abnormal); }
rect.normal { fill: var(--bar-normal); }
rect.scored { fill: var(--bar-scored); }
rect.out-of-domain { fill: var(--bar-out); }
ul.keys { display: flex; gap: 1.25rem; margin: .4rem 0 0; padding: 0; list-style: none; }
.key::before {
  display: inline-block; width: .7rem; height: .7rem; margin-right: .4rem; border-radius: 2px;
  background: var(--bar-scored); content: "";
}
.key.abnormal::before { background: var(--bar-abnormal); }
.key.normal::before { background: var(--bar-normal); }
.key.out-of-domain::before { background: var(--bar-out); }
#cards {
  display: grid; gap: 1.25rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 34rem), 1fr));
}
.case { scroll-margin-top: 4.5rem; content-visibility: auto; contain-intrinsic-size: auto 26rem; }
.case:focus { outline: 2px solid var(--accent); }
.case .top h3 { font-size: 1rem; }
.numbers { margin: .3rem 0 .7rem; color: var(--quiet); font-size: .9rem; }
.numbers strong { color: var(--text); }
.halves { display: grid; grid-template-columns: minmax(0, 11fr) minmax(0, 9fr); gap: 1.25rem; }
.says { min-width: 0; font-size: .85rem; }
.says > h4:first-child { margin-top: 0; }
.regions { grid-column: 1 / -1; overflow-x: auto; }
.says p { margin: .3rem 0; overflow-wrap: anywhere; }
.stack > div, div.stack { position: relative; background: #000; border-radius: 4px; }
.stack img { display: block; width: 100%; height: auto; aspect-ratio: auto; border-radius: 4px; }
.stack .map { position: absolute; inset: 0; height: 100%; opacity: var(--map); background: none; }
.marks { position: absolute; inset: 0; width: 100%; height: 100%; overflow: hidden; }
.no-marks figure .marks { display: none; }
.marks rect, .marks circle {
  fill: none; stroke: var(--mark); stroke-width: 1.5; vector-effect: non-scaling-stroke;
}
.marks .peak { stroke: #fff; stroke-dasharray: 3 2; }
.marks text {
  fill: var(--mark); font-weight: 600; paint-order: stroke; stroke: #000; stroke-width: .15em;
}
.region.lit rect { stroke: #fff; stroke-width: 3; }
table.small th, table.small td { padding: .2rem .4rem; }
table.small th:first-child { padding-left: 0; }
table.small td:last-child { padding-right: 0; }
table.small td { white-space: nowrap; }
table.small tbody tr:hover { background: var(--notice); }
.nearest { display: flex; align-items: flex-start; gap: .7rem; }
.nearest .stack { flex: 0 0 5.5rem; }
.bar-label { color: var(--quiet); }
.key-text { white-space: nowrap; }
.swatch {
  display: inline-block; width: .65rem; height: .65rem; margin-right: .3rem; border-radius: 2px;
  background: var(--prototype-1);
}
.swatch.memory { background: var(--memory-1); }
.swatch.appearance { background: var(--appearance); }
.parts { display: block; width: 100%; height: .8rem; border-radius: 3px; }
.parts rect { stroke: var(--sheet); stroke-width: 1; vector-effect: non-scaling-stroke; }
.prototype.step-0 { fill: var(--prototype-0); } .prototype.step-1 { fill: var(--prototype-1); }
.prototype.step-2 { fill: var(--prototype-2); } .prototype.step-3 { fill: var(--prototype-3); }
.memory.step-0 { fill: var(--memory-0); } .memory.step-1 { fill: var(--memory-1); }
.memory.step-2 { fill: var(--memory-2); } .memory.step-3 { fill: var(--memory-3); }
.parts .appearance { fill: var(--appearance); }
details { margin-top: .6rem; }
summary { cursor: pointer; color: var(--accent); }
pre {
  max-height: 32rem; overflow: auto; padding: 1rem; background: var(--sheet);
  border: 1px solid var(--line); border-radius: 8px; font-size: .8rem; white-space: pre-wrap;
  overflow-wrap: anywhere;
}
[hidden] { display: none !important; }
@media (max-width: 40rem) {
  body { padding: 1.25rem .9rem 3rem; }
  .halves { grid-template-columns: 1fr; }
  .tools .keys { display: none; }
  .chart { padding: .6rem; }
  .chart text { font-size: 17px; }
}
@media print {
  :root { --out: #fff; --out-text: #000; --error: #fff; --error-text: #000; }
  .filters, .tools { display: none; }
  #cases .scroll { max-height: none; overflow: visible; }
  #table thead th { position: static; }
  #table thead button::after { content: none !important; }
  #cards { grid-template-columns: 1fr; }
  .case { content-visibility: visible; }
  .halves { grid-template-columns: 6cm 1fr; }
}
"""
