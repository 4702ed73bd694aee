"""mypy accepts a correct script of a user and reports every mistake in a wrong one."""

import re

import pytest
from processes import ROOT, run_python

RIGHT = """
import torch
from qacg_kernels import FusedQuasiAttention, GateParameters, apply_fused_attention, explain, quasi_attention
from qacg_models import AspectSentiment, PackingCollator, QACGBertConfig, QACGBertForSequenceClassification
from qacg_models import fold_context, layerwise_relevance
from qacg_models.sentiment.options import TrainingOptions

config = QACGBertConfig(contexts=["food", "price"], num_labels=3, hidden_size=64, num_attention_heads=4, unpad=True)
model = QACGBertForSequenceClassification(config).eval()
print(fold_context(model) + 1, PackingCollator()([{"input_ids": [1, 2]}])["cu_seqlens"])
print(AspectSentiment.from_pretrained("runs/mine")("the bill was a shock", aspects=["price"]))
print(TrainingOptions(epochs=3, learning_rate=1e-3).resolved().learning_rate)
"""
WRONG = """
from qacg_kernels import quasi_attention
from qacg_models import AspectSentiment, CGBertConfig
from qacg_models.sentiment.options import TrainingOptions
CGBertConfig(gate_activation=3)  # wrong: "gate_activation"
TrainingOptions(epoch=3)  # wrong: "epoch"
AspectSentiment.from_pretrained("runs/mine", devise="cuda")  # wrong: "devise"
AspectSentiment.from_pretrained("runs/mine")(7)  # wrong: "int"
AspectSentiment.from_pretrained("runs/mine").aspect  # wrong: "aspect"
quasi_attention("q", "k", "v")  # wrong: "str"
from qacg_models import QACGBertModle  # wrong: "QACGBertModle"
"""


REVEALED = """
from qacg_kernels import quasi_attention_varlen

q = torch.randn(1, 2, 3, 4)
flag = bool(q.sum() > 0)
reveal_type(quasi_attention(q, q, q, q, q, q))
reveal_type(quasi_attention(q, q, q, q, q, q, return_lambda=False))
reveal_type(quasi_attention(q, q, q, q, q, q, return_lambda=True))
reveal_type(quasi_attention(q, q, q, q, q, q, return_lambda=flag))
reveal_type(quasi_attention_varlen(q, q, q, q, q, q, cu_seqlens=q, max_seqlen=3))
reveal_type(quasi_attention_varlen(q, q, q, q, q, q, cu_seqlens=q, max_seqlen=3, return_lambda=True))
"""


@pytest.mark.full
def test_mypy_finds_every_mistake_and_the_returned_types(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    script, path = RIGHT + WRONG + REVEALED, tmp_path / "script.py"
    path.write_text(script)
    done = run_python("-m", "mypy", "--config-file", ROOT / "pyproject.toml", path, status=None)
    assert done.returncode in (0, 1), done.stderr + done.stdout
    wrong = {
        number: line.partition("# wrong: ")[2]
        for number, line in enumerate(script.splitlines(), 1)
        if "# wrong: " in line
    }
    found = {}
    for line in done.stdout.splitlines():
        place, mark, text = line.partition(": error: ")
        if mark:
            name, _, number = place.rpartition(":")
            assert name.endswith("script.py"), line
            found[int(number)] = found.get(int(number), "") + text
    assert found.keys() == wrong.keys()
    assert all(named in found[number] for number, named in wrong.items()), found
    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout.replace("torch._tensor.", ""))
    pair = "tuple[Tensor, Tensor]"
    assert revealed == ["Tensor", "Tensor", pair, f"Tensor | {pair}", "Tensor", pair]
