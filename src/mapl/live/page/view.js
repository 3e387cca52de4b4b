'use strict';
// One run on the page: its numbers, the network, the charts, and the slider through its rounds.

const $ = id => document.getElementById(id);
const DASH = '–';

function make(tag, words, parts = {}) {
  const element = document.createElement(tag);
  if (words !== undefined) element.textContent = words;
  Object.assign(element, parts);
  return element;
}

const whole = number => number.toLocaleString('en');
const percent = share => share === null || share === undefined ? DASH : (100 * share).toFixed(1);
const signed = points => `${points < 0 ? '−' : '+'}${Math.abs(points).toFixed(1)}`;

function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  const units = ['KiB', 'MiB', 'GiB', 'TiB'];
  let value = bytes / 1024, unit = 0;
  while (value >= 1000 && unit < 3) { value /= 1024; unit += 1; }
  return `${value.toFixed(value < 10 ? 1 : 0)} ${units[unit]}`;
}

function time(seconds) {
  if (seconds < 100) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 100 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

class View {
  // `fetchGraph(round)` gives {round, rows}: W of a round, counted from 0, or of the last one before it that is known; or null.
  constructor(fetchGraph) {
    this.fetchGraph = fetchGraph;
    this.network = new Network($('network'));
    this.run = null;
    this.listen();
  }

  listen() {
    $('round').addEventListener('input', () => { this.pause(); this.choose(Number($('round').value)); });
    $('play').addEventListener('click', () => this.playing ? this.pause() : this.play());
    $('network').addEventListener('click', event => {
      const box = $('network').getBoundingClientRect();
      this.pick(this.network.near(event.clientX - box.left, event.clientY - box.top));
    });
    $('network').addEventListener('keydown', event => {
      const steps = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}, count = this.network.clients.length;
      if (event.key === 'Escape') this.pick(null);
      else if (event.key in steps && count) {
        const from = this.network.chosen ?? (steps[event.key] > 0 ? -1 : 0);
        this.pick((from + steps[event.key] + count) % count);
      } else return;
      event.preventDefault();
    });
    $('curve').addEventListener('click', event => {
      const round = this.run && this.roundAt(event.offsetX);
      if (!round) return;
      this.pause();
      this.choose(Math.min(Math.max(round, 1), this.lines.length));
    });
    $('each').addEventListener('click', event => this.run && this.pick(this.clientAt(event.offsetX)));
    $('numbers').addEventListener('toggle', () => this.table());
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.paint());
    new ResizeObserver(() => this.paint()).observe($('view'));
  }

  // A run from its first round on.
  open(run) {
    this.pause();
    this.run = run;
    this.lines = [];
    this.control = [];
    this.controlName = null;
    this.rows = null;
    this.round = 0;
    this.following = true;
    this.network.show(run);
    this.legend();
    if (!run.letters) this.network.wake();
  }

  // What was added to it. `start` is from where on the lines are.
  add(start, lines, control) {
    this.lines = this.lines.slice(0, start).concat(lines);
    if (control) {
      this.controlName = control.name;
      this.control = this.control.slice(0, control.start).concat(control.lines);
    }
    $('round').max = Math.max(1, this.lines.length);
    if (this.following || this.round > this.lines.length) this.choose(this.lines.length);
    else this.paint();
  }

  // Show the end of a round, counted from 1; 0 is before the first.
  async choose(round) {
    this.following = round === this.lines.length;
    this.round = round;
    this.older = 0;
    $('round').value = Math.max(1, round);
    this.paint();
    if (!round || !this.graphs) return;
    const graph = await this.fetchGraph(round - 1);
    if (graph && round === this.round) {
      this.rows = graph.rows;
      this.network.connect(graph.rows);
      this.rowsOf = graph.round + 1;
      this.older = this.rowsOf < round ? this.rowsOf : 0;
      this.where();
      this.words();
      this.table();
    }
  }

  pick(client) {
    this.network.chosen = client;
    this.paint();
  }

  play() {
    if (this.lines.length < 2) return;
    if (this.round >= this.lines.length) this.choose(1);
    $('play').textContent = 'Pause';
    const pace = Math.max(60, Math.min(600, 20000 / this.lines.length));
    this.playing = setInterval(() => {
      if (this.round >= this.lines.length) this.pause();
      else this.choose(this.round + 1);
    }, pace);
  }

  pause() {
    clearInterval(this.playing);
    this.playing = null;
    $('play').textContent = 'Play';
  }

  // The test that holds at the round that is shown: its own, or the last one before.
  tested(lines) {
    for (let t = this.round - 1; t >= 0; t--) if (lines[t]) return {accuracy: lines[t], round: t + 1};
    return {accuracy: null, round: 0};
  }

  results() {
    const own = this.tested(this.lines.map(line => line.a));
    const control = own.round && this.control[own.round - 1] || null;
    return {...own, control};
  }

  paint() {
    if (!this.run) return;
    const {accuracy, control} = this.results();
    this.tiles(accuracy, control);
    this.where();
    this.network.draw && this.network.layout && this.network.draw();
    this.roundAt = drawCurve($('curve'), this.lines, this.control, this.run.planned, Math.max(1, this.round));
    this.clientAt = drawEach($('each'), this.network, accuracy, control, this.run.held);
    this.describe(accuracy, control);
    this.words();
    this.table();
  }

  // Which round is shown. A page without a server may not have W of each.
  where() {
    const other = this.older ? `, W of ${this.older}` : '';
    $('where').textContent = this.round ? `round ${this.round} of ${this.run.planned}${other}` : 'not begun';
  }

  tiles(accuracy, control) {
    const own = mean(accuracy), before = mean(control), done = this.lines.slice(0, this.round);
    const letters = done.reduce((sum, line) => sum + line.m, 0), bytes = done.reduce((sum, line) => sum + line.b, 0);
    const entries = [['Round', whole(this.round), `of ${whole(this.run.planned)}${this.state ? `, ${this.state}` : ''}`],
      ['Accuracy', own === null ? DASH : `${percent(own)} %`, this.run.held.length > 1 ? 'mean over clients' : 'on its own tests']];
    if (this.run.letters) {
      entries.push(['Gain by letters', before === null ? DASH : `${signed(100 * (own - before))} points`,
        before === null ? 'no control to compare' : `alone ${percent(before)} %`]);
      entries.push(['Letters', whole(letters), size(bytes)]);
    }
    if (this.left !== undefined && this.left !== null) {
      entries.push(['Time left', this.state === 'stopped' ? DASH : time(this.left), 'by the last rounds']);
    }
    for (const [name, value, more] of this.facts || []) entries.push([name, value, more]);
    $('tiles').replaceChildren(...entries.map(([name, value, more]) => {
      const tile = make('div'), number = make('dd', value);
      number.append(make('small', more || '\u00a0'));
      tile.append(make('dt', name), number);
      return tile;
    }));
  }

  legend() {
    const {kinds, many} = this.run;
    const shown = many ? [] : kinds.map((kind, i) => {
      const entry = make('span'), dot = make('span', '', {className: 'dot'});
      dot.style.background = colourOf(i, kinds.length, many);
      entry.append(dot, `${kind.label} (${kind.number})`);
      return entry;
    });
    if (many) shown.push(make('span', `${kinds.length} sets of classes, coloured in the order of their classes`));
    if (this.run.held.length < this.run.clients.length) shown.push(make('span', 'hollow: others, whose data are not known here; dashed: not connected'));
    $('legend').replaceChildren(...shown);
  }

  // The pictures in words, for who does not see them.
  describe(accuracy, control) {
    const {clients, kinds, held} = this.run, own = mean(accuracy);
    const listen = this.rows ? `${this.network.lines.length} pairs listen to each other.` : 'Nobody listens to anybody.';
    $('network').setAttribute('aria-label', `The network after round ${this.round}: ${clients.length} clients with `
      + `${kinds.length} sets of classes. ${listen}`);
    const against = control ? `, and ${percent(mean(control))} % without letters` : '';
    const said = own === null ? 'Not tested yet.' : `After round ${this.round} the mean is ${percent(own)} %${against}.`;
    $('curve').setAttribute('aria-label', `Line chart of the accuracy by round. ${said}`);
    const better = control ? accuracy.filter((a, i) => a > control[i]).length : null;
    const each = control ? `${better} of ${held.length} are better with letters.` : '';
    $('each').setAttribute('aria-label', `Chart of the accuracy of every client. ${each} The numbers are in the table below.`);
    if (control) $('key').textContent = 'Dots: with letters. Bars, and the dashed line above: the control, the same training without letters.';
    else $('key').textContent = this.run.letters ? 'No control (the same recipe without letters) is among these runs.' : '';
  }

  top(client, most) {
    const row = this.rows && this.rows[client];
    if (!row) return null;
    return row[0].map((id, place) => [id, row[1][place]]).filter(([id, weight]) => id !== client && weight > 0)
      .sort((one, other) => other[1] - one[1]).slice(0, most);
  }

  listens(client, most) {
    const top = this.top(client, most);
    return top && top.length ? top.map(([id, weight]) => `${this.called(id)} ${weight.toFixed(2)}`).join(', ') : 'nobody';
  }

  called(id) { return this.run.clients[id].name.replace(/^client /, ''); }

  words() {
    const chosen = this.network.chosen;
    if (chosen === null) { $('client').textContent = ''; return; }
    const client = this.run.clients[chosen], place = this.run.held.indexOf(chosen), {accuracy, control} = this.results();
    const parts = [client.name + (client.kind === null ? '' : `: ${client.classes}, ${client.backbone}, ${client.samples} examples`)];
    if (accuracy && place >= 0) {
      parts.push(`Accuracy ${percent(accuracy[place])} %` + (control ? `, alone ${percent(control[place])} %` : ''));
    }
    if (place >= 0 && this.run.letters) parts.push(`Listens to ${this.listens(chosen, 5)}`);
    $('client').textContent = `${parts.join('. ')}.`;
  }

  table() {
    if (!$('numbers').open || !this.run) return;
    const {accuracy, control} = this.results();
    $('clients').replaceChildren(...this.run.held.map((id, place) => {
      const client = this.run.clients[id], row = make('tr');
      row.append(make('td', client.name, {className: 'words'}), make('td', client.classes, {className: 'words'}),
        make('td', client.backbone, {className: 'words'}), make('td', accuracy ? percent(accuracy[place]) : DASH),
        make('td', control ? percent(control[place]) : DASH), make('td', this.listens(id, 3), {className: 'words'}));
      return row;
    }));
  }

  settings(list) {
    list.replaceChildren(...Object.entries(this.run.settings).map(([name, value]) => {
      const entry = make('div');
      entry.append(make('dt', name), make('dd', String(value)));
      return entry;
    }));
  }
}
