"""Tasks on several processes, none of which can take the others down with it."""

from collections.abc import Iterator, Sequence

from recap._process import Processes, run_each
from recap.data.prepare.work import Outcome, Task, execute

_DIED = (
    "the process that worked on it died: out of memory, killed, or a decoder crashed. "
    "Try again with --workers 1, or look at this file."
)


def run_tasks(tasks: Sequence[Task], workers: int) -> Iterator[Outcome]:
    """Do all tasks, in any order; up to one worker runs here, without other processes."""
    if workers <= 1:
        return map(execute, tasks)
    engine = Processes(workers, queued=2)
    return (outcome for _, outcome in run_each(execute, tasks, engine, _died))


def _died(task: Task, reason: str) -> Outcome:
    return Outcome(task.unit.key, reason=_DIED)
