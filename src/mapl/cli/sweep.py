"""Several methods, values or seeds at once: `mapl run --seeds 5 --method mapl,courier`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mapl.cli.compare import compared, show_comparison
from mapl.cli.own import introduced, reading
from mapl.cli.recipe_options import compose_recipe
from mapl.errors import MaplError
from mapl.names import check_name
from mapl.terminal.interrupt import Interrupt, leave, stopped
from mapl.terminal.messages import quoted, say
from mapl.terminal.progress import counting

if TYPE_CHECKING:
    from mapl.analysis.sweep import Point, Sweep
    from mapl.runs.jobs import Job


def is_sweep(method: str | None, settings: Sequence[str] | None, seeds: int | None) -> bool:
    """Whether the options ask for more than one run."""
    return seeds is not None or "," in (method or "") or any(len(_values(text)) > 1 for text in settings or [])


def sweep(
    recipe: Path | None,
    settings: Sequence[str] | None,
    out: Path,
    *,
    seeds: int | None,
    controls: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train every combination, with control arms, and print the compared table."""
    from mapl.analysis.sweep import plan
    from mapl.recipe import names_code
    from mapl.runs.folder import load

    if name := options.pop("name"):
        out = out / _checked_name(name)
    with reading():
        points = list(_points(recipe, settings or [], seeds, options))
        if points[0].recipe.engine.where == "ray":
            raise MaplError("engine.where: got 'ray', but several runs at once are for one machine; run each by itself")
        planned, lines = plan(points, out, controls), introduced(points[0].recipe)
    for line in lines:
        say(line, sys.stderr if as_json else None)
    if not as_json:
        say(_announcement(planned))
    train(planned.jobs)
    records = [load(job.folder) for job in planned.jobs]
    show_comparison(*compared(records), as_json)
    if not as_json:
        there, trust = quoted(out), " --trust" if any(names_code(point.recipe) for point in points) else ""
        say(f"saved in {out}; again with: mapl compare {there}{trust}, with figures: mapl report {there}{trust}")


def train(jobs: Sequence[Job]) -> None:
    """Run all jobs, with progress. Ctrl-C or SIGTERM saves and exits; a second Ctrl-C exits at once."""
    from mapl.runs.jobs import carry_out

    interrupt = Interrupt()
    try:
        with interrupt, counting("training") as watch:
            finished = carry_out(jobs, stop=interrupt, watch=watch)
    except KeyboardInterrupt:
        leave(stopped("at once; the last checkpoints are saved"), interrupt.status)
    if not finished:
        leave(stopped("and saved"), interrupt.status)


def _checked_name(name: str) -> str:
    """The name of the folder of all runs: one folder, as the name of one run is."""
    try:
        return check_name(name)
    except ValueError as error:
        raise MaplError(f"--name {name!r}: {error}") from None


def _announcement(planned: Sweep) -> str:
    from mapl.runs.jobs import is_done

    arms, runs, done = planned.arms, len(planned.jobs), sum(map(is_done, planned.jobs))
    controls = f" ({planned.controls} of them {'a control' if planned.controls == 1 else 'controls'})"
    return (
        f"{arms} {'arm' if arms == 1 else 'arms'}{controls if planned.controls else ''}, "
        f"{len(planned.seeds)} {'seed' if len(planned.seeds) == 1 else 'seeds'}: {runs} runs in {planned.out}"
        + (f", {done} of them done already" if done else "")
    )


def _points(
    recipe: Path | None, settings: Sequence[str], seeds: int | None, options: dict[str, Any]
) -> Iterator[Point]:
    """Every combination of methods, values and seeds."""
    from mapl.analysis.sweep import Point

    methods = _listed("--method", options.pop("method"))
    choices = [_choices(text) for text in settings]
    keys = [texts[0].partition("=")[0].strip() for texts in choices]
    varied = [place for place, texts in enumerate(choices) if len(texts) > 1]
    if seeds is not None and any(keys[place] == "seed" for place in varied):
        raise MaplError("--seeds: the seeds are given by --set seed=… already; take one of the two")
    for method, chosen in itertools.product(methods, itertools.product(*choices)):
        named = tuple(chosen[place] for place in varied if keys[place] not in _IN_THE_TITLE)
        first, _ = compose_recipe(recipe, chosen, method=method, **options)
        for seed in range(first.seed, first.seed + (seeds or 1)):
            yield Point(first.model_copy(update={"seed": seed}), named)


_IN_THE_TITLE = ("seed", "clients", "method", "method.name", "data", "data.name", "network.topology.name")
"""Settings that the title of a run names anyway."""


def _listed(option: str, text: str | None) -> list[str | None]:
    """a,b,c as a list, each once; a list of None if it is not given."""
    if text is None:
        return [None]
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise MaplError(f"{option} {text!r}: a name is missing between two commas, or at an end")
    return list(dict.fromkeys(names))


def _choices(text: str) -> list[str]:
    """key=a,b,c as key=a, key=b and key=c."""
    key, equals, _ = text.partition("=")
    values = _values(text)
    if len(values) > 1 and not all(value.strip() for value in values):
        raise MaplError(f"--set {text!r}: a value is missing between two commas, or at an end")
    return list(dict.fromkeys(f"{key}{equals}{value.strip()}" for value in values))


def _values(text: str) -> list[str]:
    """The values after the first '=', apart at commas outside quotes and brackets."""
    values, depth, quote = [""], 0, ""
    for character in text.partition("=")[2]:
        if character == "," and not depth and not quote:
            values.append("")
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character in "[{") - (character in "]}")
        values[-1] += character
    return values
