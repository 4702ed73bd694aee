"""transformers' conventions: registration, the pipeline, the attention interface, the Trainer example."""

import logging
from dataclasses import replace

import pytest
import torch
from processes import ROOT, run_python
from qacg_models import AspectSentiment
from qacg_models.errors import InputError
from qacg_models.sentiment.calibration import Calibration, Candidate, Fit
from qacg_models.sentiment.trained_model import load_trained
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, pipeline
from untrained import OWN, TEXTS, write_model

NAMES = {"id2label": dict(enumerate(OWN.labels)), "label2id": {name: i for i, name in enumerate(OWN.labels)}}


def in_new_process(script, *arguments):
    """Returns the lines that a script prints in a new process."""
    script = f"import sys; sys.modules['torchao'] = None\n{script}"
    return run_python("-c", script, *arguments, paths=(ROOT, ROOT / "python")).stdout.splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved model with temperatures, so that probabilities depend on what the configuration declares."""
    base = tmp_path_factory.mktemp("conventions")
    trained = load_trained(write_model(base / "random", fields=NAMES))
    fit = Fit("dev", 200, 0.1, 0.05, 100, 5, (Candidate("none", 1.0, 0.1, 0.0, 0.0),))
    AspectSentiment(replace(trained, calibration=Calibration((1.7,), fit))).save_pretrained(base / "saved")
    return base / "saved"


def test_import_loads_neither_torch_nor_transformers():
    script = """import qacg_models
print("torch" in sys.modules, "transformers" in sys.modules)"""
    assert in_new_process(script) == ["False False"]


NAMES_READ = ["QACGBertConfig", "token_sensitivity", "register_auto_classes"]


@pytest.mark.parametrize("name", NAMES_READ)
def test_first_name_read_registers_with_transformers(name, folder):
    script = f"""from qacg_models import {name}
from transformers import AttentionInterface, AutoConfig, AutoModelForSequenceClassification as A, pipeline
print(type(A.from_pretrained(sys.argv[1])).__name__, AutoConfig.for_model("cg_bert").model_type)
print(AttentionInterface()["qacg_fused"].__name__)
answers = pipeline("aspect-sentiment", model=sys.argv[1], device="cpu")("service is slow")
print([one["aspect"] for one in answers])"""
    assert in_new_process(script, folder) == [
        "QACGBertForSequenceClassification cg_bert",
        "fused_attention_forward",
        str(list(OWN.aspects)),
    ]


@pytest.fixture(scope="module")
def pipe(folder):
    return pipeline("aspect-sentiment", model=str(folder), device="cpu")


@pytest.mark.parametrize("batch_size", [1, 4])
def test_pipeline_equals_aspect_sentiment(folder, pipe, batch_size):
    ask = AspectSentiment.from_pretrained(folder)
    assert ask.trained.calibration.temperatures == (1.7,)
    for found, expected in zip(pipe(list(TEXTS[:3]), batch_size=batch_size), ask(list(TEXTS[:3])), strict=True):
        assert [(one["aspect"], one["label"]) for one in found] == [(one.aspect, one.label) for one in expected]
        for mine, other in zip(found, expected):
            assert mine["probabilities"] == pytest.approx(other.probabilities, abs=1e-5)
            assert mine["score"] == max(mine["probabilities"].values())
    assert [one["aspect"] for one in pipe(TEXTS[0], aspects=["service", "food"])] == ["service", "food"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda pipe: pipe(" "), InputError, "text: expected a sentence"),
        (lambda pipe: pipe("fine", aspects=["view"]), InputError, r"aspects: expected aspects of the model .*'view'"),
        (lambda pipe: pipe("fine", topics=["food"]), TypeError, "unexpected keyword argument 'topics'"),
        (lambda pipe: pipe({"text": "fine"}), TypeError, "text: expected str, got dict"),
    ],
)
def test_pipeline_bad_input_raises(pipe, call, error, message):
    with pytest.raises(error, match=message):
        call(pipe)


SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
OTHERS = {
    "bert": lambda: BertModel(BertConfig(**SIZES, intermediate_size=40)),
    "gpt2": lambda: GPT2Model(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=20)),
}


@pytest.mark.parametrize("masked", [True, False], ids=["mask", "no mask"])
@pytest.mark.parametrize("kind", OTHERS)
def test_attention_name_gives_the_results_of_eager(kind, masked):
    torch.manual_seed(0)
    model = OTHERS[kind]().eval()
    batch = {"input_ids": torch.randint(0, 50, (2, 9))}
    if masked:
        batch["attention_mask"] = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    found = {}
    for name in ("eager", "qacg_fused"):
        model.set_attn_implementation(name)
        assert model.config._attn_implementation == name
        hidden = model(**batch).last_hidden_state
        model.zero_grad()
        hidden[:, :5].square().sum().backward()
        gradient = next(model.parameters()).grad.clone()
        found[name] = hidden[:, :5].detach(), gradient
    for mine, other in zip(found["qacg_fused"], found["eager"]):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)


def test_attention_name_rejects_a_learned_mask():
    """BEiT adds a learned position bias to the scores."""
    from qacg_models.layers.attention import fused_attention_forward

    heads, mask = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 3, requires_grad=True)
    with pytest.raises(ValueError, match=r"attention_mask: .* Call model.set_attn_implementation\('sdpa'\) or 'eager'"):
        fused_attention_forward(torch.nn.Module(), heads, heads, heads, mask)
    found, _ = fused_attention_forward(torch.nn.Module(), heads, heads, heads, mask.detach())
    expected = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask.detach())
    torch.testing.assert_close(found.transpose(1, 2), expected, rtol=1e-4, atol=1e-5)


def test_attention_name_warns_that_it_returns_no_maps():
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("transformers.qacg_fused")
    logger.addHandler(handler)
    try:
        model = OTHERS["bert"]().eval()
        model.set_attn_implementation("qacg_fused")
        maps = model(torch.tensor([[3, 4, 5]]), output_attentions=True).attentions
    finally:
        logger.removeHandler(handler)
    assert maps == ()
    assert len(records) == 1
    assert "Call model.set_attn_implementation('eager')" in records[0].getMessage()


def test_attention_name_repeats_grouped_keys_and_scales():
    from qacg_models.layers.attention import fused_attention_forward

    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8)
    found, _ = fused_attention_forward(torch.nn.Module(), query, key, value, None, scaling=0.1, is_causal=True)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, scale=0.1, is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(found.transpose(1, 2), expected, rtol=1e-4, atol=1e-5)


def test_python_api_prints_its_own_lines_only(tmp_path):
    """The process can import torchao, as a user's process can."""
    script = """import sys
from qacg_models import AspectSentiment
rows = {"text": [f"the soup was fine on day {n}" for n in range(20)], "aspect": ["food"] * 20, "label": ["a", "b"] * 10}
lines = []
ask = AspectSentiment.fit(rows, start="scratch", max_steps=2, say=lines.append)
ask.save_pretrained(sys.argv[1])
AspectSentiment.from_pretrained(sys.argv[1])("fine")
print(sum("rows per batch" in line for line in lines))
sys.stderr.write("end")"""
    done = run_python("-c", script, tmp_path / "model", paths=(ROOT, ROOT / "python"))
    assert done.stdout == "1\n"
    assert [line for line in done.stderr.splitlines() if not line.startswith("training:")] == ["end"]
