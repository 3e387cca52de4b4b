'use strict';
// The page of a report: all that it shows is in the page.

const told = JSON.parse($('told').textContent);
let graphs = [];  // [round, rows], counted from 0

// The rows that each kept round changed, as the rows of W at its end.
function unfolded(changes) {
  let rows = {};
  return changes.map(([round, changed]) => [round, rows = {...rows, ...changed}]);
}

// W of a round, or of the last one before it that is in the page.
const view = new View(async round => {
  const kept = graphs.filter(([t]) => t <= round).pop();
  return kept ? {round: kept[0], rows: kept[1]} : {round, rows: {}};
});
window.mapl = {view};

function show(place) {
  const {run, lines, control, changes, about, sampled} = told.runs[place];
  graphs = unfolded(changes);
  view.graphs = graphs.length > 0;
  $('about').textContent = about;
  $('left-out').textContent = sampled;
  view.open(run);
  view.add(0, lines, control && {...control, start: 0});
}

$('pick').append(...told.runs.map((run, place) => make('option', run.label, {value: place})));
$('pick').addEventListener('change', () => show(Number($('pick').value)));
$('frozen').hidden = false;
show(0);
