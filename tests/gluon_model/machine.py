"""A model of one block of a GPU for the Gluon kernels: partitions of warps, barriers, asynchronous copies and products.

Partitions run one at a time, in an order that a seed determines. Copies and products happen either at once or as late
as possible, when no partition can continue without them. Tests run both variants, because each hides other faults.
`Fault` is raised where the behaviour of a GPU is undefined.
"""

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence

import torch


class Fault(AssertionError):
    """Behaviour of a kernel that is undefined on a GPU."""


class Barrier:
    """An mbarrier: its phase ends after `count` arrivals."""

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
        """Whether the phase of this parity has ended; the current phase has the other parity."""
        return self.phases % 2 != parity


class Buffer:
    """One tile of shared memory, NaN until a copy has arrived."""

    def __init__(self, rows: int, columns: int, dtype: torch.dtype) -> None:
        self.cells = torch.full((rows, columns), float("nan"), dtype=dtype)
        self.copies = 0  # in flight
        self.readers = 0  # products in flight that read it
        self.written = 0  # time of the last write, in events of the machine


class Product:
    """A product in flight; its sums are undefined until it has been waited for."""

    def __init__(self, a, b, sums, accumulates: bool) -> None:
        self.a, self.b, self.accumulates = a, b, accumulates
        self.sums = sums.clone() if isinstance(sums, torch.Tensor) else sums
        self.result: torch.Tensor | None = None
        self.awaited = False
        for operand in self.tiles():
            operand.buffer.readers += 1

    def tiles(self):
        return [operand for operand in (self.a, self.b) if not isinstance(operand, torch.Tensor)]

    def compute(self) -> None:
        if self.result is not None:
            return
        a = self.a if isinstance(self.a, torch.Tensor) else self.a.cells()
        self.result = a.float() @ self.b.cells().float()
        if self.accumulates:
            if isinstance(self.sums, Product):
                self.sums.compute()
            self.result += self.sums.result if isinstance(self.sums, Product) else self.sums

    def end(self) -> None:
        self.compute()
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
        self.copies: deque[tuple[Callable[[], None], bool]] = deque()  # the flag marks an arrival
        self.products: list[Product] = []
        self.fenced = 0


class Machine:
    """Runs the partitions of one block."""

    def __init__(self, seed: int, late_copies: bool, late_products: bool) -> None:
        self.order = random.Random(seed)
        self.late_copies, self.late_products = late_copies, late_products
        self.back = threading.Semaphore(0)
        self.events = 0
        self.running = Partition(lambda: None, 0)  # before the partitions start
        self.partitions: list[Partition] = []

    def run(self, functions: Sequence[tuple[Callable[[], None], int]]) -> None:
        """Runs the partitions until all have returned; raises the first error of one."""
        self.partitions = [Partition(run, warps) for run, warps in functions]
        threads = [threading.Thread(target=self._run_partition, args=(p,), daemon=True) for p in self.partitions]
        for thread in threads:
            thread.start()
        while waiting := [p for p in self.partitions if not p.done]:
            runnable = [p for p in waiting if p.waits_for is None or p.waits_for()]
            if runnable:
                self.running = self.order.choice(runnable)
                self.running.waits_for = None
                self.running.turn.release()
                self.back.acquire()
                if self.running.fault:
                    raise self.running.fault
            elif not self._next_copy():
                raise Fault("every partition waits for a barrier, and no copy is in flight")
        while self._next_copy():
            raise Fault("copies are in flight when the block ends")

    def _run_partition(self, partition: Partition) -> None:
        partition.turn.acquire()
        try:
            partition.run()
            if any(not product.awaited for product in partition.products):
                raise Fault("products are in flight when a partition ends")
        except BaseException as error:  # raised again by run()
            partition.fault = error
        partition.done = True
        self.back.release()

    def pause(self, until: Callable[[], bool] | None = None) -> None:
        """Lets other partitions run; this one continues when `until` is true."""
        partition = self.running
        if partition not in self.partitions:
            return
        partition.waits_for = until
        self.back.release()
        partition.turn.acquire()

    def _next_copy(self) -> bool:
        """Performs one copy or arrival, if there is one. Copies may overtake each other; an arrival overtakes none."""
        for partition in self.order.sample(self.partitions, len(self.partitions)):
            if partition.copies:
                ahead = next((n for n, (_, arrival) in enumerate(partition.copies) if arrival), len(partition.copies))
                chosen = self.order.randrange(ahead) if ahead else 0
                perform, _ = partition.copies[chosen]
                del partition.copies[chosen]
                self.events += 1
                perform()
                return True
        return False

    def copy(self, tile, values: torch.Tensor) -> None:
        """Starts a copy to a tile, which is NaN until then."""
        buffer = tile.buffer
        if buffer.readers:
            raise Fault("a copy to a tile that products in flight read")
        if buffer.copies:
            raise Fault("a copy to a tile that is the target of another copy in flight")
        buffer.copies += 1
        buffer.cells.fill_(float("nan"))

        def perform() -> None:
            buffer.cells.copy_(values)
            buffer.copies -= 1
            buffer.written = self.events

        self._start(perform, False)

    def arrive_after_copies(self, barrier: Barrier) -> None:
        """Every thread arrives after the copies that it has started."""
        threads = 32 * self.running.warps
        self._start(lambda: barrier.arrive(threads), True)

    def _start(self, perform: Callable[[], None], arrival: bool) -> None:
        self.running.copies.append((perform, arrival))
        if not self.late_copies:
            self._next_copy()
        self.pause()

    def fence(self) -> None:
        """Makes what copies have written visible to the later products of this partition."""
        self.running.fenced = self.events

    def multiply(self, a, b, sums, accumulates: bool) -> Product:
        product = Product(a.clone() if isinstance(a, torch.Tensor) else a, b, sums, accumulates)
        for tile in product.tiles():
            if tile.buffer.copies:
                raise Fault("a product reads a tile that is the target of a copy in flight")
            if tile.buffer.written > self.running.fenced or not tile.buffer.written:
                raise Fault("a product reads what a copy has written, without a fence between them")
        self.running.products.append(product)
        if not self.late_products:
            product.compute()
        self.pause()
        return product

    def await_products(self, pending: int) -> None:
        """Waits for all products of this partition except the last `pending`."""
        products = self.running.products
        for product in products[: len(products) - pending]:
            product.end()
        del products[: len(products) - pending]
