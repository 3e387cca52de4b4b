'use strict';
// The page of `mapl watch`: it asks its server for what is new, about twice a second while somebody looks.

const EVERY = 600;
const state = {run: '', stamp: '', busy: false};

const view = new View(async round => {
  const run = state.run;
  const answer = await ask('graph.json', {run, round});
  return answer.ok && run === state.run ? answer.tree : null;
});
window.mapl = {view, state};

async function ask(name, query = {}) {
  try {
    const response = await fetch(`${name}?${new URLSearchParams(query)}`);
    const tree = await response.json();
    return {ok: response.ok, tree, status: response.status};
  } catch (error) {
    return {ok: false, tree: {problem: 'mapl watch does not answer: it has ended, or its address has changed.'}, status: 0};
  }
}

function trouble(words) {
  if ($('trouble').textContent !== words) $('trouble').textContent = words;
}

function choose(run) {
  if (run === state.run) return;
  Object.assign(state, {run, stamp: ''});
}

function rows(runs) {
  $('runs').replaceChildren(...runs.map(run => {
    const row = make('tr', undefined, {className: run.id === state.run ? 'chosen' : ''});
    const name = make('td', undefined, {className: 'words'});
    name.append(make('a', run.name, {href: `#${encodeURIComponent(run.id)}`}));
    if (run.id === state.run) name.firstChild.setAttribute('aria-current', 'true');
    if (run.problem) {
      row.append(name, make('td', run.problem, {className: 'words', colSpan: 6}));
      return row;
    }
    const method = run.role ? `${run.method} (${run.role})` : run.method;
    row.append(name, make('td', method, {className: 'words'}), make('td', run.state, {className: 'words'}),
      make('td', whole(run.seed)), make('td', whole(run.clients)), make('td', `${whole(run.rounds)} of ${whole(run.planned)}`),
      make('td', percent(run.accuracy)));
    return row;
  }));
}

let listed = '';
async function list() {
  const answer = await ask('runs.json');
  if (!answer.ok) { trouble(answer.tree.problem); return false; }
  const {runs, folder, there} = answer.tree;
  if (!runs.length && !state.run) {
    $('about').textContent = there ? `No run in ${folder} yet: it appears here as soon as one begins.` : `${folder} is gone.`;
  }
  const asked = decodeURIComponent(location.hash.slice(1)) || (state.run ? '' : document.body.dataset.run);
  // Without a wish: the run that something happened to last, one with letters first.
  const first = runs.find(run => run.state === 'under way' && !run.role) || runs.find(run => !run.problem && !run.role)
    || runs.find(run => !run.problem) || runs[0];
  if (asked) choose(asked);
  else if (!state.run && first) choose(first.id);
  const text = JSON.stringify([runs, state.run]);
  if (text !== listed && !$('runs').contains(document.activeElement)) { rows(runs); listed = text; }
  return true;
}

async function follow() {
  if (!state.run) return;
  const run = state.run;
  const query = {run, stamp: state.stamp, start: state.stamp ? view.lines.length : 0,
    control: state.stamp ? view.control.length : 0};
  const {ok, tree, status} = await ask('run.json', query);
  if (run !== state.run) return;
  if (!ok) {
    const kept = state.stamp && status === 404 ? ' What was seen of it stays here.' : '';
    trouble(tree.problem + (/[.!]$/.test(tree.problem) ? '' : '.') + kept);
    return;
  }
  trouble('');
  Object.assign(view, {state: tree.state, left: tree.left, graphs: tree.graphs, facts: tree.facts});
  view.network.alive = tree.alive;
  if (tree.stamp !== state.stamp) {
    state.stamp = tree.stamp;
    view.open(tree.run);
    view.settings($('settings'));
    document.title = `${tree.run.name} – mapl watch`;
    $('title').textContent = tree.run.name;
    $('about').textContent = `${tree.run.method} on ${tree.run.data}, ${tree.run.clients.length} clients`;
  }
  const added = tree.lines.length || (tree.control && tree.control.lines.length) || !view.round;
  if (added) view.add(tree.start, tree.lines, tree.control);
  else view.tiles(...(({accuracy, control}) => [accuracy, control])(view.results()));
}

async function look() {
  if (state.busy || document.hidden) return;
  state.busy = true;
  try {
    if (await list()) await follow();
  } finally {
    state.busy = false;
  }
}

addEventListener('hashchange', look);
document.addEventListener('visibilitychange', look);
setInterval(look, EVERY);
look();
