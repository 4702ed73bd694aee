"""Processes that want the same thing have it one after another."""

import multiprocessing
import os
import signal

import pytest
from turns import turn

fcntl = pytest.importorskip("fcntl")


def take(name, order, held, release):
    with turn(name):
        order.put(os.getpid())
        held.set()
        release.wait(60)
        order.put(os.getpid())


@pytest.fixture
def takers():
    """Starts processes that take a turn and keep it until they are let go.

    What they put has its place in the queue when `put` returns; a Queue's would wait for a thread, beyond the turn.
    """
    context = multiprocessing.get_context("spawn")
    name, order, started = f"test-{os.getpid()}", context.SimpleQueue(), []

    def start():
        held, release = context.Event(), context.Event()
        process = context.Process(target=take, args=(name, order, held, release), daemon=True)
        process.start()
        started.append(process)
        return process, held, release

    yield start, order
    for process in started:
        process.kill()
        process.join()


def test_the_second_waits_for_the_first(takers):
    start, order = takers
    first, held, release = start()
    assert held.wait(60)
    second, held_too, release_too = start()
    assert not held_too.wait(3)
    release_too.set()
    release.set()
    for process in (first, second):
        process.join(60)
        assert process.exitcode == 0
    assert [order.get() for _ in range(4)] == [first.pid, first.pid, second.pid, second.pid]


def test_one_that_dies_gives_its_turn_up(takers):
    start, _ = takers
    first, held, _ = start()
    assert held.wait(60)
    os.kill(first.pid, signal.SIGKILL)
    _, held_too, release_too = start()
    assert held_too.wait(60)
    release_too.set()
