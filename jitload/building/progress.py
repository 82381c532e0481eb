"""Shows a progress bar on a terminal or in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jitload.cache.prune import ShowProgress


@contextmanager
def progress_bar(*, is_shown: bool = True) -> Iterator[ShowProgress | None]:
    """Yield a function that shows the progress as a bar, or None if stderr is not a terminal or in a notebook.

    Also yield None if `is_shown` is False.
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

        def show(description: str, count: int, total: int) -> None:
            bar.update(row, description=description, completed=count, total=total, visible=True)
            bar.refresh()

        yield show
