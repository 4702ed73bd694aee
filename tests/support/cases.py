"""The calls with which every backend is tested.

Most sizes are not multiples of a tile. Cases have masks, causality, dropout and both kinds of gate on both sides of two
limits of the CPU kernels. One is 512 keys: calls with up to this number save no branch output (WHOLE_ROW_KEYS in
qacg_kernels/backends/cpu.py). The other is 2,048 keys: a forward that saves no branch output has up to this number in a
tile (kWholeRowKeys in csrc/cpu).
"""

from qacg_kernels.testing.inputs import Case

SMALL = (
    Case("one of everything", batch=1, heads=1, queries=1, head_dim=1),
    Case("one key, many queries", queries=17, keys=1, head_dim=8),
    Case("one query, many keys", queries=1, keys=63, head_dim=3),
    Case("two by two", queries=2, head_dim=2, gate="shared", bias="shared"),
    Case("plain", queries=17, head_dim=16),
    Case("shared gate", queries=17, head_dim=20, gate="shared"),
    Case("per-head gate, biases", queries=17, head_dim=8, gate="per_head", bias="per_head"),
    Case("mixed gate shapes", queries=13, head_dim=8, gate="per_head", bias="shared", beta=0.7, gamma=1.3),
    Case("float32 gate", head_dim=8, gate="one_row", bias="one_row", context_bias="per_head", float32_gate=True),
    Case("float32 column gate", gate="per_head", context_bias="shared", form="column", float32_gate=True),
    Case("gradient through lambda", queries=11, head_dim=8, gate="shared", bias="shared", lambda_gradient=True),
    Case("lambda gradient, per head", heads=2, gate="per_head", bias="per_head", lambda_gradient=True, beta=0.5),
    Case("column gate", queries=17, keys=29, head_dim=16, gate="shared", form="column"),
    Case("column gate, per head, masked", gate="per_head", bias="per_head", form="column", mask="boolean"),
    Case("column gate, dropout", gate="shared", bias="shared", form="column", dropout_p=0.3, gamma=0.6),
    Case("cross attention", queries=5, keys=37, head_dim=16),
    Case("boolean mask", mask="boolean"),
    Case("boolean mask, empty rows", mask="boolean_empty_rows", gate="shared", bias="per_head"),
    Case("boolean key mask", mask="boolean_keys", gate="shared"),
    Case("boolean mask, strides of zero", mask="boolean_expanded"),
    Case("boolean mask, two dims", mask="boolean_two_dims"),
    Case("nothing visible", mask="none_visible", gate="shared", bias="shared"),
    Case("additive mask", mask="additive"),
    Case("additive mask, one dim", mask="additive_row", gate="shared"),
    Case("additive mask per query", mask="additive_queries"),
    Case("padding of -10000", mask="minus_10000", gate="shared"),
    Case("-10000 everywhere", mask="minus_10000_all", batch=1),
    Case("mask of minus infinity", mask="minus_infinity", gate="shared"),
    Case("mask of the lowest number", mask="lowest", gate="shared"),
    Case("key lengths", batch=4, queries=17, key_lengths=(0, 1, 9, 17)),
    Case("key lengths, row gate", batch=3, queries=17, key_lengths=(0, 5, 17), gate="shared", bias="shared"),
    Case("causal", is_causal=True, gate="shared"),
    Case("causal, more keys", queries=7, keys=19, is_causal=True),
    Case("causal, more queries", queries=19, keys=7, is_causal=True),
    Case("causal with lengths and mask", is_causal=True, key_lengths=(4, 17), mask="boolean"),
    Case("dropout", dropout_p=0.1, gate="shared", bias="shared"),
    Case("dropout, nearly all", dropout_p=0.95, mask="additive"),
    Case("own scale and alpha", scale=0.3, quasi_scale=0.25),
    Case("negative scale and alpha", scale=-0.2, quasi_scale=-1.5, gate="shared"),
    Case("no quasi branch", quasi_scale=0.0),
    Case("bias", quasi_bias="one"),
    Case("bias per query, masked", quasi_bias="per_query", mask="boolean", gate="shared"),
    Case("bias per head, padding of -10000", quasi_bias="per_head", mask="minus_10000", dropout_p=0.1),
    Case("bias, column gate, causal", quasi_bias="per_query", gate="shared", form="column", is_causal=True),
    Case("bias, one key, many queries", queries=19, keys=1, head_dim=32, quasi_bias="per_query"),
    Case("bias, few queries", queries=3, keys=70, head_dim=32, quasi_bias="per_head", scale=-0.2),
    Case("bias, packed", sequences=(5, 1, 17, 3), gate="shared", bias="shared", quasi_bias="per_query"),
    Case("bias, packed, causal", sequences=(12, 7), is_causal=True, quasi_bias="per_sequence"),
    Case("bias, packed, per head", sequences=(0, 7, 3), quasi_bias="per_head", layout="rows_first"),
    Case("equal scores", constant=True, mask="boolean", queries=33),
    Case("packed", sequences=(5, 1, 17, 3), gate="shared", bias="shared"),
    Case("packed, empty sequences", sequences=(0, 4, 0, 9, 0), gate="per_head", bias="per_head"),
    Case("packed, lambda, causal", sequences=(12, 7), is_causal=True),
    Case("packed, dropout", sequences=(6, 2, 19), dropout_p=0.25, gate="shared", lambda_gradient=True),
    Case("packed, column gate", sequences=(6, 11), gate="shared", form="column"),
)

LAYOUT_CASES = tuple(
    Case(f"layout {layout}", queries=17, head_dim=head_dim, layout=layout, mask="boolean", gate=gate)
    for layout, head_dim, gate in (
        ("heads_inside", 16, "shared"),
        ("fused_projection", 33, "lambda"),
        ("rows_first", 8, "per_head"),
        ("strided", 20, "shared"),
        ("shared_heads", 16, "lambda"),
    )
) + tuple(
    Case(f"packed layout {layout}", sequences=(9, 14), head_dim=16, layout=layout, gate=gate)
    for layout, gate in (("fused_projection", "shared"), ("strided", "lambda"), ("rows_first", "lambda"))
)

# Too large for the oracle, so they are compared with eager PyTorch in float64.
TILED = (
    Case("111 x 111 x 64", queries=111, head_dim=64, gate="shared", bias="shared", mask="minus_10000"),
    Case("130 x 130 x 80", batch=1, queries=130, head_dim=80, gate="per_head", is_causal=True),
    Case("128 x 128 x 128", batch=1, heads=2, queries=128, head_dim=128, layout="heads_inside", dropout_p=0.1),
    Case("63 x 63 x 256", batch=1, heads=2, queries=63, head_dim=256, gate="shared", mask="boolean"),
    Case("300 x 300 x 33", batch=1, heads=2, queries=300, head_dim=33, key_lengths=(130,), gate="shared"),
    Case("511 keys", batch=1, heads=2, queries=20, keys=511, head_dim=8),
    Case("512 keys, masked", batch=1, heads=2, queries=33, keys=512, head_dim=16, mask="additive"),
    Case("512 keys, dropout", batch=1, heads=2, queries=512, head_dim=16, dropout_p=0.2, gate="shared"),
    Case("513 keys", batch=1, heads=2, queries=20, keys=513, head_dim=16),
    Case("513 keys, row gate", batch=1, heads=2, queries=513, head_dim=8, gate="shared", bias="shared"),
    Case("520 causal dropout", batch=1, heads=2, queries=520, head_dim=33, is_causal=True, dropout_p=0.1),
    Case("520 empty rows", batch=1, heads=1, queries=520, head_dim=20, mask="boolean_empty_rows"),
    Case("520 minus infinity", batch=1, heads=1, queries=520, head_dim=16, mask="minus_infinity", gate="shared"),
    Case("700 nothing visible", batch=1, heads=2, queries=9, keys=700, head_dim=8, mask="none_visible"),
    Case("700 lowest number", batch=1, heads=1, queries=33, keys=700, head_dim=16, mask="lowest", dropout_p=0.1),
    Case("700 padding of -10000", batch=2, heads=1, queries=65, keys=700, head_dim=64, mask="minus_10000"),
    Case("700 x 256 dims", batch=1, heads=1, queries=63, keys=700, head_dim=256, layout="strided"),
    Case("1216 keys, three tiles", batch=1, heads=1, queries=300, keys=1216, head_dim=64),
    Case("900 x 256 dims, two tiles", batch=1, heads=1, queries=140, keys=900, head_dim=256, is_causal=True),
    Case("700 one dim", batch=1, heads=1, queries=17, keys=700, head_dim=1, mask="boolean"),
    Case("700 keys, column gate", batch=1, heads=2, queries=40, keys=700, head_dim=8, gate="shared", form="column"),
    Case("1030 lengths", batch=3, heads=1, queries=65, keys=1030, head_dim=16, key_lengths=(0, 513, 1030)),
    Case("1030 row gate", batch=1, heads=2, queries=1030, head_dim=16, gate="per_head", bias="per_head"),
    Case("1030 through lambda", batch=1, heads=1, queries=1030, head_dim=8, gate="shared", lambda_gradient=True),
    Case("2048 keys, dropout", batch=1, heads=2, queries=33, keys=2048, head_dim=16, dropout_p=0.1, mask="additive"),
    Case("2047 keys, column gate", batch=1, heads=1, queries=20, keys=2047, gate="shared", form="column"),
    Case("2050 keys", batch=2, heads=1, queries=33, keys=2050, head_dim=8, key_lengths=(2049, 2000), dropout_p=0.1),
    Case("2100 keys, column gate", batch=1, heads=1, queries=20, keys=2100, gate="shared", form="column"),
    Case("2100 minus infinity", batch=1, heads=1, queries=35, keys=2100, head_dim=20, mask="minus_infinity"),
    Case("packed beyond 2048", heads=1, sequences=(2060, 5), head_dim=8, gate="shared", is_causal=True),
    Case("bias, 130 x 80", queries=130, head_dim=80, gate="shared", quasi_bias="per_query", layout="heads_inside"),
    Case("bias, 700 keys, dropout", batch=1, queries=65, keys=700, quasi_bias="per_head", dropout_p=0.1),
    Case("bias, 2100 keys, column", heads=1, queries=20, keys=2100, gate="shared", form="column", quasi_bias="one"),
    Case("more queries than keys", batch=1, heads=2, queries=700, keys=17, head_dim=16, is_causal=True),
    Case("packed long and short", heads=2, sequences=(600, 3, 0, 111), head_dim=16, gate="shared", dropout_p=0.1),
    Case("packed long causal", heads=1, sequences=(63, 530), head_dim=33, is_causal=True, layout="fused_projection"),
)

# Scores reach 10,000: most rows of the softmax are one-hot, and the softmax is only as exact as the scores.
LARGE_SCORES = (
    Case("large scores", queries=63, head_dim=16, score_size=2500.0),
    Case("large scores, long rows", batch=1, queries=63, keys=700, head_dim=16, score_size=2500.0),
    Case("large scores, masked", queries=63, head_dim=16, score_size=2500.0, mask="boolean", gate="shared"),
)

# For kernels on tensor cores, which compute strips of 16 rows and support head sizes that are multiples of 8: padded
# head sizes, masks that end inside a strip, and lengths on both sides of 128 keys.
STRIPS = (
    Case("strips, 8 dims", queries=40, keys=70, head_dim=8, mask="additive"),
    Case("strips, 24 dims, column", queries=70, keys=131, head_dim=24, gate="per_head", bias="shared", form="column"),
    Case("strips, 32 dims, packed", sequences=(129, 0, 64, 1, 63), head_dim=32, gate="shared", bias="per_head"),
    Case("strips, 40 dims, causal", queries=65, head_dim=40, is_causal=True, gate="shared", dropout_p=0.3),
    Case("strips, 64 dims, 128 keys", queries=81, keys=128, head_dim=64, mask="boolean_empty_rows", dropout_p=0.1),
    Case("strips, 64 dims, 129 keys", queries=63, keys=129, head_dim=64, mask="minus_infinity", layout="heads_inside"),
    Case("strips, 64 dims, lowest", queries=33, keys=65, head_dim=64, mask="lowest"),
    Case("strips, 64 dims, lengths", batch=4, queries=66, head_dim=64, key_lengths=(0, 1, 64, 66), gate="shared"),
    Case("strips, 72 dims", batch=1, queries=70, keys=200, head_dim=72, gate="shared", form="column", dropout_p=0.2),
    Case("strips, 128 dims", batch=1, heads=2, queries=97, keys=193, head_dim=128, layout="fused_projection"),
    Case("strips, 64 dims, bias", queries=81, keys=128, head_dim=64, quasi_bias="per_query", dropout_p=0.1),
    Case("strips, 64 dims, bias, long", queries=70, keys=200, head_dim=64, quasi_bias="per_query", is_causal=True),
    Case("strips, 128 dims, bias", heads=2, queries=70, keys=193, head_dim=128, quasi_bias="per_head", mask="boolean"),
    Case("strips, 32 dims, bias", sequences=(65, 3), head_dim=32, gate="shared", quasi_bias="per_query"),
    Case("key mask", batch=2, heads=1, queries=200, head_dim=64, mask="boolean_keys", gate="shared"),
    Case("key mask, short", batch=2, heads=1, queries=70, keys=100, head_dim=32, mask="additive_keys"),
    Case("mask within", heads=1, queries=150, head_dim=128, mask="boolean_keys_within", is_causal=True, dropout_p=0.1),
    Case("mask, column gate", queries=40, keys=300, head_dim=64, mask="additive_keys", gate="per_head", form="column"),
    Case("strips, 128 dims, short", batch=1, heads=2, queries=100, head_dim=128, gate="shared", lambda_gradient=True),
)
