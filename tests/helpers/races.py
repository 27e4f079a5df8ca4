"""Many writers at once."""

import threading
from collections.abc import Callable


def winners(count: int, write: Callable[[int], bool]) -> list[int]:
    """Numbers of the writers whose `write` returned true, of `count` that start at the same moment."""
    won: list[int] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        start.wait()
        if write(number):
            won.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won
