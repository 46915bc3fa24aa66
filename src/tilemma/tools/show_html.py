"""One self-contained page: hovering an element lights its lane and register, hovering a register its element.

The page carries the same data as `--format json` and builds its tables from it.  An address such as
`show.html#A.3.5` opens with element (3, 5) of A lit, `#A.lane14.1` with value 1 of lane 14.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape

from tilemma.atoms import Operand
from tilemma.atoms.atom import Atom
from tilemma.tools.show import AXES, to_json
from tilemma.tools.show_text import facts, memory_layouts, operand_facts

_HEAD = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
_CSS = """
:root{--ink:#222;--ground:#fff;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--ink:#e4e7eb;--ground:#12181f}}
*{box-sizing:border-box}
body{font:14px/1.4 system-ui,sans-serif;margin:1.5em;color:var(--ink);background:var(--ground)}
h1,h2,div>code{overflow-wrap:anywhere}h1{font-size:1.3em}h2{font-size:1.1em}
code,td,th,#answer{font-family:ui-monospace,Menlo,Consolas,monospace}
#answer{position:sticky;top:0;background:var(--ground);padding:.5em 0;border-bottom:1px solid #8888;
min-height:1.4em}
.pair{display:flex;flex-wrap:wrap;gap:2em;align-items:flex-start;overflow-x:auto}
table{border-collapse:collapse;font-size:11px}
th{color:#888;font-weight:normal;padding:1px 4px}
td{padding:1px 4px;border:1px solid var(--ground);color:#222;text-align:center;cursor:default}
td.lane{outline:2px solid #888;outline-offset:-2px}
td.hit{background:#222!important;color:#fff}
caption{text-align:left;padding:.3em 0}
@media print{#answer{position:static}.pair{overflow:visible}}
"""

_SCRIPT = """
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const answer = document.getElementById('answer');
const ofLane = new Map();      // lane -> all its cells, of every operand
const elements = {};           // operand -> row,col -> cell
const registers = {};          // operand -> lane,value -> cell
const add = (parent, tag, text) => {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  parent.appendChild(e);
  return e;
};
const colour = lane => `hsl(${(lane >> 2) % 8 * 45},75%,${88 - lane % 4 * 7}%)`;
const remember = (lane, cell) => {
  if (!ofLane.has(lane)) ofLane.set(lane, []);
  ofLane.get(lane).push(cell);
};
let lit = [];
const clear = () => { for (const c of lit) c.classList.remove('hit', 'lane'); lit = []; };
const mark = (cell, css) => { cell.classList.add(css); lit.push(cell); };
function light(name, row, col, lane, value) {
  clear();
  const op = data.operands[name];
  const owners = lane === undefined ? op.owners[row][col] : [[lane, value]];
  for (const [l, v] of owners) {
    for (const c of ofLane.get(l)) mark(c, 'lane');
    mark(registers[name][`${l},${v}`], 'hit');
  }
  mark(elements[name][`${row},${col}`], 'hit');
  const [l, v] = owners[0];
  const width = data.bits[name], low = v % op.pack * width;
  answer.textContent = `${name}(${row}, ${col}) is ${name.toLowerCase()}${v} of lane ${l}: register ` +
    `${Math.floor(v / op.pack)}` + (op.pack > 1 ? `, bits ${low}-${low + width - 1}` : '');
}
const attach = (cell, ...where) => cell.addEventListener('mouseover', () => light(...where));
for (const [name, op] of Object.entries(data.operands)) {
  const place = document.getElementById('op-' + name);
  if (!op.owners || !place) continue;
  elements[name] = {}; registers[name] = {};
  const axes = data.axes[name], held = new Map();
  const map = add(place, 'table');
  add(map, 'caption', 'elements');
  const head = add(map, 'tr');
  add(head, 'th');
  op.owners[0].forEach((_, c) => add(head, 'th', axes[1] + c));
  op.owners.forEach((line, r) => {
    const tr = add(map, 'tr');
    add(tr, 'th', axes[0] + r);
    line.forEach((owners, c) => {
      const [lane, value] = owners[0];
      const td = add(tr, 'td', `T${lane} ${name.toLowerCase()}${value}`);
      td.id = `${name}.${r}.${c}`;
      td.style.background = colour(lane);
      elements[name][`${r},${c}`] = td;
      for (const [l, v] of owners) { remember(l, td); held.set(`${l},${v}`, [r, c]); }
      attach(td, name, r, c);
    });
  });
  const values = Math.max(...[...held.keys()].map(k => +k.split(',')[1])) + 1;
  const regs = add(place, 'table');
  add(regs, 'caption', 'lanes and registers');
  const top = add(regs, 'tr');
  add(top, 'th');
  for (let v = 0; v < values; v++)
    add(top, 'th', op.pack > 1 ? `r${Math.floor(v / op.pack)}.${v % op.pack}` : `r${v}`);
  for (let lane = 0; lane < data.threads; lane++) {
    const tr = add(regs, 'tr');
    add(tr, 'th', 'T' + lane);
    for (let v = 0; v < values; v++) {
      const at = held.get(`${lane},${v}`);
      const td = add(tr, 'td', at ? `${at[0]},${at[1]}` : '');
      if (!at) continue;
      td.id = `${name}.lane${lane}.${v}`;
      td.style.background = colour(lane);
      registers[name][`${lane},${v}`] = td;
      remember(lane, td);
      attach(td, name, at[0], at[1], lane, v);
    }
  }
}
const follow = () => {
  const cell = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (cell) { cell.dispatchEvent(new Event('mouseover')); cell.scrollIntoView({block: 'center'}); }
};
addEventListener('hashchange', follow);
follow();
"""


def picture_page(title: str, svg: str) -> str:
    """A picture as a page: a large one scrolls inside the page, and keeps its paper in the dark."""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{_HEAD}<title>{escape(title)}</title>'
        f"<style>{_CSS}.paper{{background:#fff;overflow:auto}}</style></head><body>"
        f'<h1>{escape(title)}</h1><div class="paper" tabindex="0">{svg}</div></body></html>\n'
    )


def page(atom: Atom, operands: Mapping[str, Operand]) -> str:
    """The page as HTML text: no network, no library."""
    data = to_json(atom, operands) | {
        "axes": {letter: AXES[letter] for letter in operands},
        "bits": {letter: o.dtype.bits for letter, o in operands.items()},
    }
    # "</" would end the script element early.
    payload = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    sections = []
    for letter, operand in operands.items():
        first, *rest = operand_facts(letter, operand)
        more = rest if operand.in_registers else memory_layouts(operand)
        lines = "".join(f"<div><code>{escape(line)}</code></div>" for line in more)
        sections.append(f'<h2>{escape(first)}</h2>{lines}<div class="pair" id="op-{letter}"></div>')
    about = "".join(f"<div><code>{escape(line)}</code></div>" for line in facts(atom))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{_HEAD}<title>{escape(atom.name)}</title>'
        f"<style>{_CSS}</style></head><body>\n<h1>{escape(atom.name)}</h1>{about}\n"
        '<div id="answer">Point at an element or a register.</div>\n'
        + "\n".join(sections)
        + f'\n<script type="application/json" id="data">{payload}</script>\n'
        + f"<script>{_SCRIPT}</script>\n</body></html>\n"
    )
