"""Processes hold a lock one after another."""

import multiprocessing
import os
import signal

import pytest
from machine_lock import machine_lock

fcntl = pytest.importorskip("fcntl")


def hold(name, order, locked, release):
    with machine_lock(name):
        order.put(os.getpid())
        locked.set()
        release.wait(60)
        order.put(os.getpid())


@pytest.fixture
def holders():
    """Starts processes that hold the lock until an event is set.

    A SimpleQueue is written when `put` returns; a Queue writes in a thread, possibly after the lock is released.
    """
    context = multiprocessing.get_context("spawn")
    name, order, started = f"test-{os.getpid()}", context.SimpleQueue(), []

    def start():
        locked, release = context.Event(), context.Event()
        process = context.Process(target=hold, args=(name, order, locked, release), daemon=True)
        process.start()
        started.append(process)
        return process, locked, release

    yield start, order
    for process in started:
        process.kill()
        process.join()


def test_second_process_waits_for_the_first(holders):
    start, order = holders
    first, first_locked, release = start()
    assert first_locked.wait(60)
    second, second_locked, second_release = start()
    assert not second_locked.wait(3)
    second_release.set()
    release.set()
    for process in (first, second):
        process.join(60)
        assert process.exitcode == 0
    assert [order.get() for _ in range(4)] == [first.pid, first.pid, second.pid, second.pid]


def test_process_that_dies_releases_the_lock(holders):
    start, _ = holders
    first, first_locked, _ = start()
    assert first_locked.wait(60)
    os.kill(first.pid, signal.SIGKILL)
    _, second_locked, second_release = start()
    assert second_locked.wait(60)
    second_release.set()
