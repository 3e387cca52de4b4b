'use strict';
// Drawing on canvases: the network, the curve of the accuracy, and the accuracy of every client.

const COLOURS = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#8f6bd1'];
const EDGES = 3000;  // the strongest are drawn
const WIDTHS = 8;

function colourOf(kind, kinds, many) {
  if (kind === null) return null;
  return many ? `hsl(${Math.round(330 * kind / Math.max(kinds - 1, 1))} 65% 50%)` : COLOURS[kind];
}

function theme() {
  const style = getComputedStyle(document.documentElement);
  const named = name => style.getPropertyValue(name).trim();
  return {ink: named('--ink'), soft: named('--soft'), line: named('--line'), back: named('--back'), accent: named('--accent'),
    edge: named('--edge')};
}

// The pen of a canvas that has as many dots as the screen shows there.
function pen(canvas) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = '12px system-ui, sans-serif';
  return {context, width, height};
}

// W as lines without direction: [a, b, weight], the strongest first; and the share of attention in each.
function pairs(rows, count) {
  const both = new Map(), given = new Float64Array(count);
  for (const [from, [ids, weights]] of Object.entries(rows)) {
    const a = Number(from);
    ids.forEach((b, place) => { if (b !== a) given[a] += weights[place]; });
  }
  for (const [from, [ids, weights]] of Object.entries(rows)) {
    const a = Number(from);
    ids.forEach((b, place) => {
      if (b === a || weights[place] <= 0) return;
      const key = a < b ? a * count + b : b * count + a;
      const known = both.get(key) || [Math.min(a, b), Math.max(a, b), 0, 0];
      known[2] += weights[place] / 2;
      known[3] += weights[place] / given[a] / 2;
      both.set(key, known);
    });
  }
  return [...both.values()].sort((one, other) => other[2] - one[2]);
}

class Network {
  constructor(canvas) {
    this.canvas = canvas;
    this.frames = 0;
    this.chosen = null;
    this.clients = [];
    this.lines = [];
  }

  show(run) {
    if (this.clients.length !== run.clients.length) this.layout = new Layout(run.clients.length);
    this.clients = run.clients;
    this.kinds = run.kinds.length;
    this.many = run.many;
    this.chosen = null;
  }

  connect(rows) {
    this.rows = rows;
    this.lines = pairs(rows, this.clients.length);
    this.layout.pull(this.lines.slice(0, 4 * EDGES).map(([a, b, , share]) => [a, b, share]));
    this.wake();
  }

  wake() {
    if (matchMedia('(prefers-reduced-motion: reduce)').matches) {
      while (this.layout && !this.layout.still) this.layout.step();
    }
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => this.tick());
  }

  tick() {
    this.waiting = false;
    if (!this.layout) return;
    this.layout.step();
    this.draw();
    this.frames += 1;
    if (!this.layout.still) this.wake();
  }

  get radius() { return Math.max(2.5, Math.min(13, 70 / Math.sqrt(this.clients.length + 1))) * Math.min(1, this.width / 420); }

  place(i) {
    const {x, y, width, height} = this.view;
    const scale = Math.min((this.width / 2 - this.margin) / width, (this.height / 2 - this.margin) / height);
    return [this.width / 2 + scale * (this.layout.x[i] - x), this.height / 2 + scale * (this.layout.y[i] - y)];
  }

  draw() {
    const {context, width, height} = pen(this.canvas), look = theme();
    [this.width, this.height] = [width, height];
    this.margin = 20 + this.radius;
    const now = this.layout.frame();
    // The frame follows slowly, so that the picture does not jump.
    const ease = this.view ? 0.15 : 1;
    this.view = Object.fromEntries(Object.entries(now).map(([k, v]) => [k, this.view ? this.view[k] + ease * (v - this.view[k]) : v]));
    const at = this.clients.map((_, i) => this.place(i));
    this.at = at;
    this.drawLines(context, look, at);
    this.drawDots(context, look, at);
  }

  drawLines(context, look, at) {
    const drawn = this.lines.slice(0, EDGES), top = drawn.length ? drawn[0][2] : 1;
    const bins = Array.from({length: WIDTHS}, () => []);
    for (const line of drawn) bins[Math.min(WIDTHS - 1, Math.floor(WIDTHS * line[2] / top))].push(line);
    const thick = Math.max(2, Math.min(7, 0.55 * this.radius)), faint = this.chosen === null ? 1 : 0.25;
    const crowd = Math.min(1, 500 / (drawn.length + 1));  // many lines are fainter, or they would be one blot
    context.strokeStyle = look.soft;
    context.lineCap = 'round';
    bins.forEach((bin, place) => {
      const strength = (place + 0.5) / WIDTHS;
      context.lineWidth = Math.max(0.4, thick * strength);
      context.globalAlpha = faint * (0.12 + 0.5 * strength) * (0.35 + 0.65 * crowd);
      context.beginPath();
      for (const [a, b] of bin) { context.moveTo(...at[a]); context.lineTo(...at[b]); }
      context.stroke();
    });
    context.globalAlpha = 1;
    if (this.chosen === null || !this.rows || !this.rows[this.chosen]) return;
    const [ids, weights] = this.rows[this.chosen];
    const most = Math.max(...ids.map((id, place) => id === this.chosen ? 0 : weights[place]), 1e-12);
    context.strokeStyle = look.accent;
    ids.forEach((id, place) => {
      if (id === this.chosen || weights[place] <= 0) return;
      context.lineWidth = Math.max(0.6, (thick + 1) * weights[place] / most);
      context.beginPath(); context.moveTo(...at[this.chosen]); context.lineTo(...at[id]); context.stroke();
    });
  }

  drawDots(context, look, at) {
    const radius = this.radius, numbered = this.clients.length <= 40 && radius >= 7;
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    context.font = `600 ${Math.round(Math.max(9, 0.95 * radius))}px system-ui, sans-serif`;
    this.clients.forEach((client, i) => {
      const colour = colourOf(client.kind, this.kinds, this.many), [x, y] = at[i];
      context.beginPath();
      context.arc(x, y, i === this.chosen ? radius + 3 : radius, 0, 6.2832);
      context.fillStyle = colour || look.back;
      context.fill();
      context.lineWidth = i === this.chosen ? 3 : 1;
      context.strokeStyle = i === this.chosen ? look.ink : colour ? look.back : look.soft;
      context.setLineDash(this.alive && client.kind === null && !this.alive.includes(i) ? [3, 3] : []);
      context.stroke();
      context.setLineDash([]);
      if (numbered) {
        context.fillStyle = !colour ? look.ink : colour === COLOURS[0] ? '#fff' : '#000';
        context.fillText(String(i), x, y + 0.5);
        if (client.name !== `client ${i}`) {
          context.fillStyle = look.ink;
          context.fillText(client.name.slice(0, 14), x, y + radius + 9);
        }
      }
    });
  }

  // The client at a place of the canvas.
  near(x, y) {
    if (!this.at) return null;
    let best = null, least = (this.radius + 8) ** 2;
    this.at.forEach(([left, top], i) => {
      const away = (left - x) ** 2 + (top - y) ** 2;
      if (away < least) [best, least] = [i, away];
    });
    return best;
  }
}

function mean(values) { return values && values.length ? values.reduce((a, b) => a + b, 0) / values.length : null; }

function quantile(sorted, share) {
  const place = share * (sorted.length - 1), low = Math.floor(place);
  return sorted[low] + (place - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

// A chart's frame: what of it is for the data, and lines at round numbers of percent.
function axes(context, look, width, height, low, high) {
  const box = {left: 46, right: width - 10, top: 8, bottom: height - 22};
  const y = value => box.bottom - (value - low) / (high - low) * (box.bottom - box.top);
  const step = [0.01, 0.02, 0.05, 0.1, 0.2].find(s => (high - low) / s <= 5) || 0.25;
  context.textBaseline = 'middle';
  context.textAlign = 'right';
  context.fillStyle = look.soft;
  context.strokeStyle = look.line;
  context.lineWidth = 1;
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + 1e-9; value += step) {
    context.beginPath(); context.moveTo(box.left, y(value)); context.lineTo(box.right, y(value)); context.stroke();
    context.fillText(`${Math.round(100 * value)} %`, box.left - 5, y(value));
  }
  return {box, y};
}

function span(values) {
  const low = Math.min(...values), high = Math.max(...values), room = Math.max(0.02, 0.08 * (high - low));
  return [Math.max(0, low - room), Math.min(1, high + room)];
}

// Returns which round is at a place of the canvas, from the left.
function drawCurve(canvas, lines, control, planned, round) {
  const {context, width, height} = pen(canvas), look = theme();
  const points = lines.map((line, t) => line.a && {t: t + 1, mean: mean(line.a), sorted: [...line.a].sort((a, b) => a - b)})
    .filter(Boolean);
  const others = control.slice(0, Math.max(lines.length, 1)).map((a, t) => a && {t: t + 1, mean: mean(a)}).filter(Boolean);
  if (!points.length) { nothing(context, look, width, height, 'Not tested yet'); return () => null; }
  const bands = points.map(p => [quantile(p.sorted, 0.1), quantile(p.sorted, 0.9)]);
  const {box, y} = axes(context, look, width, height, ...span([...bands.flat(), ...others.map(p => p.mean)]));
  const last = Math.max(planned, 2), x = t => box.left + (t - 1) / (last - 1) * (box.right - box.left);
  context.globalAlpha = 0.22;
  context.fillStyle = look.accent;
  context.beginPath();
  points.forEach((p, i) => context.lineTo(x(p.t), y(bands[i][1])));
  [...points].reverse().forEach((p, i) => context.lineTo(x(p.t), y(bands[points.length - 1 - i][0])));
  context.fill();
  context.globalAlpha = 1;
  const stroke = (list, colour, dash) => {
    context.strokeStyle = colour; context.lineWidth = 2; context.setLineDash(dash); context.beginPath();
    list.forEach(p => context.lineTo(x(p.t), y(p.mean)));
    context.stroke(); context.setLineDash([]);
    if (list.length === 1) { context.fillStyle = colour; context.fillRect(x(list[0].t) - 2, y(list[0].mean) - 2, 4, 4); }
  };
  stroke(others, look.soft, [5, 4]);
  stroke(points, look.accent, []);
  context.strokeStyle = look.ink; context.lineWidth = 1;
  context.beginPath(); context.moveTo(x(round), box.top); context.lineTo(x(round), box.bottom); context.stroke();
  context.fillStyle = look.soft; context.textBaseline = 'alphabetic';
  context.textAlign = 'left'; context.fillText('1', box.left, height - 5);
  context.textAlign = 'right'; context.fillText(String(planned), box.right, height - 5);
  context.textAlign = 'center'; context.fillText('round', (box.left + box.right) / 2, height - 5);
  return left => Math.round(1 + (left - box.left) / (box.right - box.left) * (last - 1));
}

// A line for each client, from the accuracy of its control to its own; the order goes by kind, then by client.
// Returns which client is at a place of the canvas, from the left.
function drawEach(canvas, network, accuracy, control, held) {
  const {context, width, height} = pen(canvas), look = theme();
  if (!accuracy) { nothing(context, look, width, height, 'Not tested in this round'); return () => null; }
  const order = accuracy.map((_, place) => place)
    .sort((a, b) => network.clients[held[a]].kind - network.clients[held[b]].kind || a - b);
  const {box, y} = axes(context, look, width, height, ...span([...accuracy, ...(control || [])]));
  const gap = (box.right - box.left) / order.length, radius = Math.max(1.5, Math.min(5, 0.4 * gap));
  order.forEach((place, column) => {
    const client = held[place], x = box.left + gap * (column + 0.5);
    const colour = colourOf(network.clients[client].kind, network.kinds, network.many);
    if (control) {
      context.strokeStyle = colour; context.lineWidth = Math.max(1, Math.min(2.5, 0.3 * gap));
      context.beginPath(); context.moveTo(x, y(control[place])); context.lineTo(x, y(accuracy[place])); context.stroke();
      context.strokeStyle = look.soft; context.lineWidth = 1.5;
      context.beginPath(); context.moveTo(x - radius - 1, y(control[place])); context.lineTo(x + radius + 1, y(control[place]));
      context.stroke();
    }
    context.fillStyle = colour;
    context.beginPath(); context.arc(x, y(accuracy[place]), radius, 0, 6.2832); context.fill();
    if (client === network.chosen) { context.strokeStyle = look.ink; context.lineWidth = 2; context.stroke(); }
  });
  context.fillStyle = look.soft; context.textAlign = 'center'; context.textBaseline = 'alphabetic';
  context.fillText('clients, those with the same classes together', (box.left + box.right) / 2, height - 5);
  return left => held[order[Math.floor((left - box.left) / gap)]] ?? null;
}

function nothing(context, look, width, height, words) {
  context.fillStyle = look.soft; context.textAlign = 'center'; context.textBaseline = 'middle';
  context.fillText(words, width / 2, height / 2);
}
