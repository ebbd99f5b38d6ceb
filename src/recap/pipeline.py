"""Work that overlaps: reading ahead of the caller, writing behind it, both in bounded numbers.

    with Behind(write, threads, most) as behind:
        for thing in ahead(read, names, threads, most):
            behind.put(compute(thing))

Readers wait when the caller is slow, and the caller waits when writers are: however many things
there are, only a few are in memory.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Generic, Self, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ahead(
    read: Callable[[Item], Result],
    items: Iterable[Item],
    threads: int,
    most: int,
    start: Callable[[], None] | None = None,
) -> Generator[Result, None, None]:
    """What `read` gives for each item, in their order; at most `most` are read and not yet taken.

    Without threads nothing is read before it is asked for; `start` is the first that each of them
    does. Close it to stop reading early.
    """
    if threads == 0:
        yield from map(read, items)
        return
    flying: deque[Future[Result]] = deque()
    waiting, broken = iter(items), None
    with ThreadPoolExecutor(threads, "recap-read", start) as pool:
        try:
            while True:
                try:
                    item = next(waiting)
                except StopIteration:
                    break
                except Exception as error:  # what is on its way costs it nothing
                    broken = error
                    break
                flying.append(pool.submit(read, item))
                if len(flying) >= most:
                    yield flying.popleft().result()
            while flying:
                yield flying.popleft().result()
            if broken is not None:
                raise broken
        finally:
            for future in flying:
                future.cancel()


def side_by_side(
    work: Callable[[Item], Result], items: Iterable[Item], count: int
) -> Generator[Result, None, None]:
    """What `work` gives for each item, in their order: in `count` threads on which torch computes
    alone, so that none waits for another; or, for a count of 1, in the caller's own."""
    if count == 1:
        yield from map(work, items)
        return
    import torch

    before = torch.get_num_threads()
    try:
        yield from ahead(work, items, count, count + 1, lambda: torch.set_num_threads(1))
    finally:
        # Of the caller it was never changed, but threads that begin later take the last one given.
        torch.set_num_threads(before)


class Behind(Generic[Item]):
    """Writes things in threads while the caller goes on; at most `most` are not yet written.

    What was put is written, also when the caller is interrupted. An error of a writer is raised
    where the caller puts the next thing, or at the end.
    """

    def __init__(self, write: Callable[[Item], None], threads: int, most: int) -> None:
        self._write = write
        self._most = most
        self._pool = ThreadPoolExecutor(threads, "recap-write")
        self._flying: set[Future[None]] = set()

    def put(self, item: Item) -> None:
        """Have a thing written; waits while too many others are not."""
        self._wait_for_fewer_than(self._most)
        self._flying.add(self._pool.submit(self._write, item))

    def settle(self) -> None:
        """Wait until everything is written."""
        self._wait_for_fewer_than(1)

    def _wait_for_fewer_than(self, count: int) -> None:
        while len(self._flying) >= count:
            written, self._flying = wait(self._flying, return_when=FIRST_COMPLETED)
            for future in written:
                future.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True)
        if error is None:  # one that is on its way says more
            self.settle()
