"""Random combinations of all options meet the error rule.

The combinations are the same in every run; `--random-calls 500` runs more of them.
"""

import random

from full_members import members
from judging import check

from qacg_kernels.backends import dispatch
from qacg_kernels.testing.inputs import LAYOUTS, MASKS, QUASI_BIASES, Case

HEAD_DIMS = (1, 2, 3, 5, 7, 8, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 80, 100, 127, 128, 130, 160, 200, 255, 256)
SHORT = (1, 2, 3, 5, 15, 16, 17, 31, 33, 63, 64, 65, 97, 127, 130, 200)
LONG = (300, 511, 512, 513, 515, 600, 700, 1025)
IN_EVERY_RUN = 24


def pytest_generate_tests(metafunc):
    if "number" in metafunc.fixturenames:
        calls = range(metafunc.config.getoption("--random-calls"))
        metafunc.parametrize("number", members(calls, fast=range(IN_EVERY_RUN)))


def drawn(number, head_dims=HEAD_DIMS):
    chance = random.Random(number)
    pick = chance.choice
    packed, long = chance.random() < 0.2, chance.random() < 0.25
    queries = pick(LONG if long else SHORT)
    options = dict(
        batch=1 if long else pick((1, 2, 3)),
        heads=pick((1, 2, 3)),
        head_dim=pick(head_dims),
        queries=queries,
        gate=pick(("lambda", "shared", "one_row", "per_head")),
        is_causal=chance.random() < 0.3,
        dropout_p=pick((0.0, 0.0, 0.1, 0.5)),
        scale=pick((None, None, 0.1, -0.3)),
        quasi_scale=pick((1.0, 1.0, 0.2, -1.0)),
        layout=pick(tuple(LAYOUTS)),
        quasi_bias=pick((None, None, *QUASI_BIASES)),
    )
    if options["gate"] != "lambda":
        options |= dict(
            form=pick(("row", "row", "column")),
            bias=pick((None, "shared", "one_row", "per_head")),
            context_bias=pick((None, "shared", "one_row", "per_head")),
            float32_gate=chance.random() < 0.5,
            beta=pick((1.0, 0.5, -1.0)),
            gamma=pick((1.0, 0.3, 0.0)),
        )
        options["lambda_gradient"] = options["form"] == "row" and chance.random() < 0.3
    if packed:
        lengths = [pick((0, 1, 2, 5, 17, 40, 64, 65, 130)) for _ in range(chance.randint(1, 5))]
        options["sequences"] = (*lengths, *((530,) if long else ()))
        return Case(f"random call {number}", **options)
    keys = queries
    if options["gate"] == "lambda" or options["form"] == "column":
        keys = options["keys"] = pick((1, 2, 7, 16, 17, 64, 100, 129, 511, 512, 513, 1040, 2048, 2053))
    options["mask"] = pick((None, None, *MASKS))
    if chance.random() < 0.3:
        options["key_lengths"] = tuple(chance.randint(0, keys) for _ in range(options["batch"]))
    return Case(f"random call {number}", **options)


def test_random_call_meets_the_error_rule(number, kernel, dtype, device):
    module = dispatch.backend_of(kernel)
    head_dims = [d for d in HEAD_DIMS if not dispatch.wrong_head_dim(module, d)]
    check(drawn(number, head_dims), kernel, dtype, device)
