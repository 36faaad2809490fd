"""Proof that a conversation has left nothing behind in the process that held it: tasks, threads, open files.

What a tenant starts is known by its context: everything that runs for it runs in a context of its own, and tasks made
there are remembered. Threads and files are compared with what there was before. Sockets are not looked at, since Ray
opens and closes its own at any time.
"""

import asyncio
import contextvars
import gc
import os
import stat
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

LEAVE_SECONDS = 1.0
"""How long tasks and threads may take to end."""
_LOOK_SECONDS = 0.005
_FILES = "/proc/self/fd"
_KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFCHR, stat.S_IFBLK)
_SHARED_THREADS = "perdure-"  # threads of the process itself, made when first needed

_tenant: contextvars.ContextVar["Tenancy | None"] = contextvars.ContextVar("perdure_tenant", default=None)


def watch_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Let tenancies know of the tasks of this loop. Once per loop."""

    def factory(loop: asyncio.AbstractEventLoop, work: Any, /, **options: Any) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        context = options.get("context")
        tenant = _tenant.get() if context is None else context.get(_tenant)
        if tenant is not None:
            tenant._tasks.add(task)
        return task

    loop.set_task_factory(factory)


class Tenancy:
    """The stay of one conversation in this process. Created before anything of it is there."""

    def __init__(self) -> None:
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._threads = set(threading.enumerate())
        self._files = Counter(_open_files().values())
        self._context = contextvars.copy_context()
        self._context.run(_tenant.set, self)
        # asyncio.to_thread of the tenant's code goes here, and ends with it.
        self._executor = ThreadPoolExecutor(thread_name_prefix="tenant")
        asyncio.get_running_loop().set_default_executor(self._executor)

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call it in the tenant's context."""
        return self._context.run(function, *arguments)

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """A task in the tenant's context."""
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    async def leave(self, besides: "asyncio.Task[Any] | None" = None) -> list[str]:
        """Cancel what still runs and wait for it, at most a second. What is left is named; [] = nothing is."""
        for task in self._running(besides):
            task.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(thread_name_prefix="perdure-idle"))
        deadline = time.monotonic() + LEAVE_SECONDS
        is_collected = False
        while left := self._left(besides):
            if not is_collected:
                gc.collect()  # files of objects in cycles; only when something is left, since it costs milliseconds
                is_collected = True
            elif time.monotonic() > deadline:
                return left
            else:
                await asyncio.sleep(_LOOK_SECONDS)  # threads and files tell nobody when they end
        return []

    def _running(self, besides: "asyncio.Task[Any] | None") -> "list[asyncio.Task[Any]]":
        return [task for task in self._tasks if not task.done() and task is not besides]

    def _left(self, besides: "asyncio.Task[Any] | None") -> list[str]:
        tasks = [f"task {task.get_name()}" for task in self._running(besides)]
        threads = [
            f"thread {thread.name}"
            for thread in threading.enumerate()
            if thread not in self._threads and not thread.name.startswith(_SHARED_THREADS)
        ]
        before, files = self._files.copy(), []
        for descriptor, file in _open_files().items():
            if before[file]:
                before[file] -= 1
            else:
                files.append(f"file {_path_of(descriptor)}")
        return tasks + threads + files


def _open_files() -> dict[int, tuple[int, int]]:
    """Descriptors of files, folders and devices, each with what identifies it; nothing where the system does not tell."""
    try:
        descriptors = os.listdir(_FILES)
    except OSError:
        return {}
    files = {}
    for descriptor in map(int, descriptors):
        try:
            facts = os.fstat(descriptor)
        except OSError:  # the one that listed the folder
            continue
        # Not sockets, pipes and the kernel's own kinds; without a name is what Ray shares as memory.
        if stat.S_IFMT(facts.st_mode) in _KINDS and facts.st_nlink:
            files[descriptor] = (facts.st_dev, facts.st_ino)
    return files


def _path_of(descriptor: int) -> str:
    try:
        return os.readlink(f"{_FILES}/{descriptor}")
    except OSError:
        return f"number {descriptor}"
