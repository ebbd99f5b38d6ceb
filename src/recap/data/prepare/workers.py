"""Tasks on several processes, none of which can take the others down with it."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool

from recap.data.prepare.work import Outcome, Task, execute
from recap.data.processes import process_pool

_DIED = (
    "the process that worked on it died: out of memory, killed, or a decoder crashed. "
    "Try again with --workers 1, or look at this file."
)


def run_tasks(tasks: Sequence[Task], workers: int) -> Iterator[Outcome]:
    """Do all tasks, in any order; up to one worker runs here, without other processes."""
    if workers <= 1:
        yield from map(execute, tasks)
        return
    waiting = deque(tasks)
    while waiting:
        flying: dict[Future[Outcome], Task] = {}
        try:
            yield from _until_one_dies(waiting, flying, workers)
        except BrokenProcessPool:
            # Any of them may have been the cause: each gets a process of its own.
            for suspect in flying.values():
                yield _alone(suspect)


def _until_one_dies(
    waiting: deque[Task], flying: dict[Future[Outcome], Task], workers: int
) -> Iterator[Outcome]:
    pool = process_pool(workers, __name__)
    try:
        while waiting or flying:
            while waiting and len(flying) < 2 * workers:
                future = pool.submit(execute, waiting[0])
                flying[future] = waiting.popleft()
            for future in wait(flying, return_when=FIRST_COMPLETED).done:
                outcome = future.result()
                del flying[future]
                yield outcome
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _alone(task: Task) -> Outcome:
    with process_pool(1, __name__) as pool:
        try:
            return pool.submit(execute, task).result()
        except BrokenProcessPool:
            return Outcome(task.unit.key, reason=_DIED)
