"""Shows a progress bar on a terminal or in a notebook."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ShowProgress = Callable[[str, int, int], None]  # the kind of work, how much of it is done, and how much there is
_REFRESH_S = 0.1  # drawing the bar for each step would take longer than the work


@contextmanager
def progress_bar(*, is_shown: bool = True) -> Iterator[ShowProgress | None]:
    """Yield a function that shows the progress as a bar on a terminal or in a notebook.

    Yield None elsewhere, or if `is_shown` is False.
    """
    if not is_shown:
        yield None
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Automatic refreshing would start a thread, whose locks could stay held in a forked child.
    with Progress(*columns, console=console, auto_refresh=False) as bar:
        row = bar.add_task("", visible=False)

        shown_s = 0.0

        def show(description: str, count: int, total: int) -> None:
            nonlocal shown_s
            bar.update(row, description=description, completed=count, total=total, visible=True)
            if count == total or time.monotonic() - shown_s > _REFRESH_S:
                shown_s = time.monotonic()
                bar.refresh()

        yield show
