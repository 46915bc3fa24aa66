'use strict';
const byId = id => document.getElementById(id);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const data = JSON.parse(byId('data').textContent);

// Light and dark: the system's preference until a choice is made.
const root = document.documentElement;
const system = matchMedia('(prefers-color-scheme: dark)');
let chosen = null;
const applyTheme = () => { root.dataset.theme = chosen || (system.matches ? 'dark' : 'light'); drawMap(); };
system.addEventListener('change', () => applyTheme());
const toggleTheme = () => { chosen = root.dataset.theme === 'dark' ? 'light' : 'dark'; applyTheme(); };

// Source lines: everything with the same data-l comes from the same line.
const ofLine = new Map();
for (const e of all('[data-l]')) {
  const line = +e.dataset.l;
  if (!ofLine.has(line)) ofLine.set(line, []);
  ofLine.get(line).push(e);
}
const source = byId('columns').querySelector('.code[data-code="0"]');
// Linked: lines that have more than themselves.
const linked = [...ofLine.keys()].filter(l => ofLine.get(l).length > 1).sort((a, b) => a - b);
for (const line of linked) for (const e of ofLine.get(line)) if (e.parentElement === source) e.classList.add('linked');
let pinned = 0, hovered = 0;
const mark = (line, css, on) => { for (const e of ofLine.get(line) || []) e.classList.toggle(css, on); };
const status = text => { byId('status').textContent = text; };
const sourceRow = line => (ofLine.get(line) || []).find(e => e.parentElement === source);

function describe(line) {
  const parts = ofLine.get(line) || [], code = sourceRow(line);
  const count = n => parts.filter(e => e.parentElement.dataset && e.parentElement.dataset.code === String(n)).length;
  const text = code ? code.textContent.replace(/^\d+/, '').trim() : '';
  const bars = parts.filter(e => e.closest('.strip')).length;
  return `line ${line}: ${text.slice(0, 160)}  (${count(1)} lines of PTX, ${count(2)} of SASS, ${bars} bars)`;
}
function scrollInto(pane, element) {
  if (!pane || pane.hidden || !element) return;
  pane.scrollTop += element.getBoundingClientRect().top - pane.getBoundingClientRect().top - pane.clientHeight / 3;
}
function follow(line) {
  for (const pane of all('.code')) {
    const first = (ofLine.get(line) || []).find(e => e.parentElement === pane);
    if (first) scrollInto(pane, first);
  }
}
function pin(line, from) {
  if (pinned) mark(pinned, 'pinned', false);
  pinned = line === pinned && from ? 0 : line;
  if (pinned) {
    mark(pinned, 'pinned', true);
    status(describe(pinned));
    if (!from || !from.closest('.code')) follow(pinned);
    else for (const pane of all('.code')) {
      if (pane !== from.closest('.code'))
        scrollInto(pane, (ofLine.get(pinned) || []).find(e => e.parentElement === pane));
    }
    history.replaceState(null, '', '#line-' + pinned);
  } else { status(''); history.replaceState(null, '', location.pathname + location.search); }
}
const title = e => { const t = e.querySelector && e.querySelector('title'); return t ? t.textContent : ''; };
document.addEventListener('mouseover', event => {
  const e = event.target.closest('[data-l]'), line = e ? +e.dataset.l : 0;
  if (line !== hovered) {
    if (hovered) mark(hovered, 'lit', false);
    hovered = line;
    if (line) mark(line, 'lit', true);
  }
  const block = event.target.closest('[data-b]');
  for (const other of all('[data-b].lit')) other.classList.remove('lit');
  if (block) for (const other of all(`[data-b="${block.dataset.b}"]`)) other.classList.add('lit');
});
document.addEventListener('click', event => {
  const e = event.target.closest('[data-l]');
  if (e) { pin(+e.dataset.l, e); if (title(e)) status(title(e) + ' - ' + describe(+e.dataset.l)); }
  const block = event.target.closest('[data-b]');
  if (block) selectBlock(block.dataset.b);
});

// Code: source, PTX, SASS.
function selectCode(n) {
  for (const tab of all('.code-tab')) tab.setAttribute('aria-selected', String(tab.dataset.code === String(n)));
  for (const pane of all('.code')) pane.hidden = pane.dataset.code !== String(n);
  if (pinned) follow(pinned);
}
for (const tab of all('.code-tab')) tab.addEventListener('click', () => selectCode(tab.dataset.code));

// Timelines: one block at a time; zoom stretches the drawing inside its frame.
const strips = all('.strip'), tabs = all('.tab');
let block = strips.length ? strips[0].dataset.block : '', zoom = 1;
function selectBlock(name) {
  if (!strips.some(s => s.dataset.block === name)) return;
  block = name;
  for (const s of strips) s.hidden = s.dataset.block !== name;
  for (const t of tabs) t.classList.toggle('on', t.dataset.block === name);
}
function stepBlock(by) {
  const names = [...new Set(strips.map(s => s.dataset.block))];
  if (names.length) selectBlock(names[(names.indexOf(block) + by + names.length) % names.length]);
}
const widths = new Map();
function setZoom(value) {
  zoom = Math.min(40, Math.max(1, value));
  for (const strip of strips) {
    const svg = strip.querySelector('svg');
    if (!widths.has(svg)) {
      const items = [];
      for (const e of all('rect, path[data-p], path.g, text.t', svg)) {
        if (e.tagName === 'text' && (e.classList.contains('k') || +e.getAttribute('x') < 20)) continue;
        const d = e.getAttribute('d'), at = d ? /^M([\d.]+) (.*)$/.exec(d) : null;
        items.push({e, x: at ? +at[1] : +e.getAttribute('x'), rest: at && at[2], w: +e.getAttribute('width')});
      }
      const grid = items.filter(i => i.e.classList.contains('g'));
      widths.set(svg, {items, left: grid.length ? grid[0].x : 0, width: svg.viewBox.baseVal.width});
    }
    const {items, left, width} = widths.get(svg), room = strip.parentElement.clientWidth - 6;
    const scale = zoom * Math.min(1, Math.max(.4, (room - left) / (width - left))), move = x => left + (x - left) * scale;
    for (const {e, x, rest, w} of items) {
      if (rest) e.setAttribute('d', `M${move(x).toFixed(1)} ${rest}`);
      else e.setAttribute('x', move(x).toFixed(1));
      if (e.tagName === 'rect') e.setAttribute('width', Math.max(1.5, w * scale).toFixed(1));
    }
    const wide = left + (width - left) * scale;
    svg.setAttribute('viewBox', `0 0 ${wide} ${svg.viewBox.baseVal.height}`);
    svg.setAttribute('width', wide);
    for (const band of all('.band', svg)) band.setAttribute('d', band.getAttribute('d').replace(/H[\d.]+/, 'H' + wide));
    const ground = svg.querySelector('.bg');
    if (ground) ground.setAttribute('d', ground.getAttribute('d').replace(/H[1-9][\d.]*/, 'H' + wide));
  }
}
for (const t of tabs) t.addEventListener('click', () => selectBlock(t.dataset.block));
for (const z of all('.zoom')) z.addEventListener('click', () => setZoom(+z.dataset.z ? zoom * z.dataset.z : 1));
addEventListener('resize', () => setZoom(zoom));
selectBlock(block);
setZoom(1);

// Search: code, names, roles, decisions.
const places = all('.code > div, .act, tr, .plan, .role h4, .slot');
let hits = [], at = -1;
function search(text) {
  for (const e of hits) e.classList.remove('hit', 'current');
  const wanted = text.trim().toLowerCase();
  hits = wanted ? places.filter(e => e.textContent.toLowerCase().includes(wanted)) : [];
  for (const e of hits) e.classList.add('hit');
  at = -1;
  byId('found').textContent = wanted ? `${hits.length} found` : '';
}
function nextHit(by) {
  if (!hits.length) return;
  if (at >= 0) hits[at].classList.remove('current');
  at = (at + by + hits.length) % hits.length;
  const e = hits[at], pane = e.closest('.code');
  e.classList.add('current');
  if (pane) { selectCode(pane.dataset.code); scrollInto(pane, e); }
  else { const d = e.closest('details'); if (d) d.open = true; e.scrollIntoView({block: 'center'}); }
  byId('found').textContent = `${at + 1} of ${hits.length}`;
}
byId('search').addEventListener('input', event => search(event.target.value));

// Fragments: a canvas, an element a cell, coloured by warp and lane.
const HUES = ['#0072b2', '#e69f00', '#009e73', '#cc79a7'];
const select = byId('operand'), canvas = byId('canvas'), laneInput = byId('lane'), cellInput = byId('cell');
let lane = -1, pointed = null;
const mix = (hex, share) => '#' + [1, 3, 5].map(i =>
  Math.round(255 - (255 - parseInt(hex.slice(i, i + 2), 16)) * share).toString(16).padStart(2, '0')).join('');
const laneColour = (l, threads) => threads > 32
  ? mix(HUES[(l >> 5) % 4], 0.3 + 0.5 * (l % 32) / 31) : mix(HUES[(l >> 3) % 4], 0.35 + 0.45 * (l % 8) / 7);
function fragment() { return select ? data.fragments[select.value] : null; }
function drawMap() {
  const f = fragment();
  if (!f) return;
  const size = +cellInput.value, high = Math.max(size > 18 ? 18 : size, 2), ratio = Math.min(2, devicePixelRatio || 1);
  const gap = size > 5 ? 1 : 0;
  const left = 34, top = 16, width = left + f.cols * size, height = top + f.rows * high;
  const scale = width * height * ratio * ratio > 2.4e7 ? 1 : ratio;
  canvas.width = width * scale; canvas.height = height * scale;
  canvas.style.width = width + 'px'; canvas.style.height = height + 'px';
  const c = canvas.getContext('2d'), style = getComputedStyle(root), ink = style.getPropertyValue('--ink');
  c.scale(scale, scale);
  c.clearRect(0, 0, width, height);
  c.font = '10px ui-monospace, Menlo, Consolas, monospace';
  c.fillStyle = style.getPropertyValue('--muted');
  const every = n => Math.max(1, 2 ** Math.ceil(Math.log2(n)));
  for (let x = 0; x < f.cols; x += every(30 / size)) c.fillText(x, left + x * size, 11);
  for (let y = 0; y < f.rows; y += every(12 / high)) c.fillText(y, 4, top + y * high + Math.min(high, 11));
  const letter = select.value.split('|')[1].toLowerCase();
  for (let y = 0, i = 0; y < f.rows; y++) for (let x = 0; x < f.cols; x++, i++) {
    const px = left + x * size, py = top + y * high;
    c.globalAlpha = lane < 0 || f.lanes[i] === lane ? 1 : 0.22;
    c.fillStyle = laneColour(f.lanes[i], f.threads);
    c.fillRect(px, py, size - gap, high - (high > 5 ? 1 : 0));
    if (size >= 22 && high >= 12 && (lane < 0 || f.lanes[i] === lane)) {
      c.fillStyle = '#000';
      c.fillText(size >= 36 ? `T${f.lanes[i]} ${letter}${f.values[i]}` : `${f.lanes[i]}`, px + 2, py + 11, size - 4);
    }
  }
  c.globalAlpha = 1;
  if (lane >= 0 && size >= 4) {
    c.strokeStyle = ink;
    f.lanes.forEach((l, i) => {
      if (l === lane) c.strokeRect(left + i % f.cols * size + .5, top + Math.floor(i / f.cols) * high + .5, size - 1, high - 1);
    });
  }
  drawMap.geometry = {size, high, left, top};
}
function legend() {
  const f = fragment();
  if (!f) return;
  const groups = f.threads > 32 ? ['warp 0', 'warp 1', 'warp 2', 'warp 3'] :
    ['lanes 0 to 7', 'lanes 8 to 15', 'lanes 16 to 23', 'lanes 24 to 31'];
  byId('lanes').replaceChildren(...groups.map((name, i) => {
    const key = document.createElement('span'), box = document.createElement('b');
    key.className = 'lane-key';
    box.style.background = mix(HUES[i], .75);
    key.append(box, name);
    return key;
  }));
  laneInput.max = f.threads - 1;
}
function fit() {
  const f = fragment();
  if (!f) return;
  const room = byId('map').clientWidth - 40;
  cellInput.value = Math.max(2, Math.min(36, Math.floor(room / f.cols)));
}
function elementAt(event) {
  const f = fragment(), g = drawMap.geometry, box = canvas.getBoundingClientRect();
  const x = Math.floor((event.clientX - box.left - g.left) / g.size), y = Math.floor((event.clientY - box.top - g.top) / g.high);
  return f && x >= 0 && y >= 0 && x < f.cols && y < f.rows ? {x, y, i: y * f.cols + x} : null;
}
function say(p) {
  const f = fragment(), letter = select.value.split('|')[1], v = f.values[p.i], l = f.lanes[p.i];
  const part = f.pack > 1 ? `, part ${v % f.pack} of ${f.pack}` : '';
  byId('element').textContent = `${letter}(${p.y}, ${p.x}): ${f.threads > 32 ? `warp ${l >> 5}, ` : ''}lane ${l}, ` +
    `${letter.toLowerCase()}${v}, ${f.register} register ${Math.floor(v / f.pack)}${part}`;
}
function selectLane(value) {
  lane = value;
  laneInput.value = value < 0 ? '' : value;
  drawMap();
}
if (select) {
  select.addEventListener('change', () => { lane = -1; laneInput.value = ''; legend(); fit(); drawMap(); });
  laneInput.addEventListener('input', () => selectLane(laneInput.value === '' ? -1 : +laneInput.value));
  cellInput.addEventListener('input', drawMap);
  canvas.addEventListener('mousemove', event => { const p = elementAt(event); if (p) say(p); });
  canvas.addEventListener('click', event => {
    const p = elementAt(event);
    if (p) { say(p); selectLane(fragment().lanes[p.i] === lane ? -1 : fragment().lanes[p.i]); }
  });
  canvas.addEventListener('keydown', event => {
    const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key], f = fragment();
    if (!step) return;
    event.preventDefault();
    pointed = pointed || {x: 0, y: 0};
    const x = (pointed.x + step[0] + f.cols) % f.cols, y = (pointed.y + step[1] + f.rows) % f.rows;
    pointed = {x, y, i: y * f.cols + x};
    say(pointed);
    selectLane(f.lanes[pointed.i]);
  });
  legend(); fit();
}

// Keyboard.
function stepLine(by) {
  if (!linked.length) return;
  const now = pinned || (by > 0 ? -Infinity : Infinity);
  const next = by > 0 ? linked.find(l => l > now) ?? linked[0]
    : [...linked].reverse().find(l => l < now) ?? linked[linked.length - 1];
  pin(next, null);
}
const sections = all('main > section');
document.addEventListener('keydown', event => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === 'Escape') { byId('search').blur(); if (pinned) pin(pinned, source); return; }
  if (event.target.id === 'search' && event.key === 'Enter') { nextHit(event.shiftKey ? -1 : 1); return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key;
  if (key === '/') { event.preventDefault(); byId('search').focus(); }
  else if (key === 'n') nextHit(1);
  else if (key === 'N') nextHit(-1);
  else if (key === 'j') stepLine(1);
  else if (key === 'k') stepLine(-1);
  else if (key === '[') stepBlock(-1);
  else if (key === ']') stepBlock(1);
  else if (key === '+' || key === '=') setZoom(zoom * 1.5);
  else if (key === '-') setZoom(zoom / 1.5);
  else if (key === '0') setZoom(1);
  else if (key === 't') toggleTheme();
  else if (key === '?') byId('help').showModal();
  else if (key >= '1' && key <= '6') { const s = sections[key - 1]; if (s) s.scrollIntoView(); }
  else if (key === 'Enter' && event.target.closest && event.target.closest('[data-l]'))
    pin(+event.target.closest('[data-l]').dataset.l, event.target);
});
byId('theme').addEventListener('click', toggleTheme);
byId('help-button').addEventListener('click', () => byId('help').showModal());
addEventListener('resize', () => { if (select) { fit(); drawMap(); } });
applyTheme();
const wanted = /^#line-(\d+)$/.exec(location.hash);
if (wanted && ofLine.has(+wanted[1])) pin(+wanted[1], null);
