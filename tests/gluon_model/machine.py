"""One block of a GPU for the Gluon kernels: partitions of warps, barriers in shared memory, copies and products that
run on while their warps go on.

Partitions take turns, one at a time, in an order that a seed decides. What runs on by itself, a copy or a product,
happens as early as it may or as late: at once, or when nobody can go on without it. Each is a run of its own, since
each hides other faults. Whatever a real GPU would leave undefined raises `Fault`.
"""

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence

import torch


class Fault(AssertionError):
    """What a kernel must not do."""


class Barrier:
    """An mbarrier: its phase ends when `count` have arrived."""

    def __init__(self) -> None:
        self.count = self.left = self.phases = 0

    def arrive(self, count: int) -> None:
        if not self.count:
            raise Fault("an arrival at a barrier that was not initialised")
        if count > self.left:
            raise Fault(f"{count} arrivals at a barrier whose phase waits for {self.left}")
        self.left -= count
        if not self.left:
            self.phases, self.left = self.phases + 1, self.count

    def is_over(self, parity: int) -> bool:
        """Whether the phase of this parity has ended: the one that runs has the other."""
        return self.phases % 2 != parity


class Buffer:
    """One tile of shared memory; nothing is in it until a copy has come."""

    def __init__(self, rows: int, columns: int, dtype: torch.dtype) -> None:
        self.cells = torch.full((rows, columns), float("nan"), dtype=dtype)
        self.copies = 0  # in flight
        self.readers = 0  # products in flight that read it
        self.written = 0  # when, by the machine's count of events


class Product:
    """A product in flight; its sums are nobody's until it has been waited for."""

    def __init__(self, a, b, sums, adds: bool) -> None:
        self.a, self.b, self.adds = a, b, adds
        self.sums = sums.clone() if isinstance(sums, torch.Tensor) else sums
        self.result: torch.Tensor | None = None
        self.awaited = False
        for operand in self.tiles():
            operand.buffer.readers += 1

    def tiles(self):
        return [operand for operand in (self.a, self.b) if not isinstance(operand, torch.Tensor)]

    def happen(self) -> None:
        if self.result is not None:
            return
        a = self.a if isinstance(self.a, torch.Tensor) else self.a.cells()
        self.result = a.float() @ self.b.cells().float()
        if self.adds:
            if isinstance(self.sums, Product):
                self.sums.happen()
            self.result += self.sums.result if isinstance(self.sums, Product) else self.sums

    def end(self) -> None:
        self.happen()
        if not self.awaited:
            for operand in self.tiles():
                operand.buffer.readers -= 1
        self.awaited = True


class Partition:
    """Warps that run one function."""

    def __init__(self, run: Callable[[], None], warps: int) -> None:
        self.run, self.warps = run, warps
        self.turn = threading.Semaphore(0)
        self.waits_for: Callable[[], bool] | None = None
        self.done = False
        self.fault: BaseException | None = None
        self.copies: deque[tuple[Callable[[], None], bool]] = deque()  # and whether it is an arrival
        self.products: list[Product] = []
        self.fenced = 0


class Machine:
    """Runs the partitions of one block."""

    def __init__(self, seed: int, late_copies: bool, late_products: bool) -> None:
        self.order = random.Random(seed)
        self.late_copies, self.late_products = late_copies, late_products
        self.back = threading.Semaphore(0)
        self.events = 0
        self.running = Partition(lambda: None, 0)  # before there are partitions
        self.partitions: list[Partition] = []

    def run(self, functions: Sequence[tuple[Callable[[], None], int]]) -> None:
        """Until all have returned. Raises what the first of them raised."""
        self.partitions = [Partition(run, warps) for run, warps in functions]
        threads = [threading.Thread(target=self._of, args=(p,), daemon=True) for p in self.partitions]
        for thread in threads:
            thread.start()
        while waiting := [p for p in self.partitions if not p.done]:
            able = [p for p in waiting if p.waits_for is None or p.waits_for()]
            if able:
                self.running = self.order.choice(able)
                self.running.waits_for = None
                self.running.turn.release()
                self.back.acquire()
                if self.running.fault:
                    raise self.running.fault
            elif not self._next_copy():
                raise Fault("every partition waits for a barrier, and no copy is in flight")
        while self._next_copy():  # else the block would end before them
            raise Fault("copies are in flight when the block ends")

    def _of(self, partition: Partition) -> None:
        partition.turn.acquire()
        try:
            partition.run()
            if any(not product.awaited for product in partition.products):
                raise Fault("products are in flight when a partition ends")
        except BaseException as error:  # goes on in the thread that asked
            partition.fault = error
        partition.done = True
        self.back.release()

    def pause(self, until: Callable[[], bool] | None = None) -> None:
        """Lets others go on; the partition goes on when `until` holds."""
        partition = self.running
        if partition not in self.partitions:
            return
        partition.waits_for = until
        self.back.release()
        partition.turn.acquire()

    def _next_copy(self) -> bool:
        """Lets one copy or arrival happen. Copies overtake one another, an arrival none."""
        for partition in self.order.sample(self.partitions, len(self.partitions)):
            if partition.copies:
                ahead = next((n for n, (_, arrival) in enumerate(partition.copies) if arrival), len(partition.copies))
                chosen = self.order.randrange(ahead) if ahead else 0
                happen, _ = partition.copies[chosen]
                del partition.copies[chosen]
                self.events += 1
                happen()
                return True
        return False

    def copy(self, tile, values: torch.Tensor) -> None:
        """Starts a copy to a tile, which holds nothing meanwhile."""
        buffer = tile.buffer
        if buffer.readers:
            raise Fault("a copy to a tile that products in flight read")
        if buffer.copies:
            raise Fault("a copy to a tile that another copy is on its way to")
        buffer.copies += 1
        buffer.cells.fill_(float("nan"))

        def happen() -> None:
            buffer.cells.copy_(values)
            buffer.copies -= 1
            buffer.written = self.events

        self._start(happen, False)

    def arrive_after_copies(self, barrier: Barrier) -> None:
        """Every thread arrives when the copies that it started have come."""
        threads = 32 * self.running.warps
        self._start(lambda: barrier.arrive(threads), True)

    def _start(self, happen: Callable[[], None], arrival: bool) -> None:
        self.running.copies.append((happen, arrival))
        if not self.late_copies:
            self._next_copy()
        self.pause()

    def fence(self) -> None:
        """What copies have written, this partition's products see from here on."""
        self.running.fenced = self.events

    def multiply(self, a, b, sums, adds: bool) -> Product:
        product = Product(a.clone() if isinstance(a, torch.Tensor) else a, b, sums, adds)
        for tile in product.tiles():
            if tile.buffer.copies:
                raise Fault("a product reads a tile that a copy is on its way to")
            if tile.buffer.written > self.running.fenced or not tile.buffer.written:
                raise Fault("a product reads what a copy has written, with no fence since")
        self.running.products.append(product)
        if not self.late_products:
            product.happen()
        self.pause()
        return product

    def await_products(self, running_on: int) -> None:
        """All of this partition but the last so many."""
        products = self.running.products
        for product in products[: len(products) - running_on]:
            product.end()
        del products[: len(products) - running_on]
