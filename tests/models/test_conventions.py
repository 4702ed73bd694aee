"""Every model class as a transformers model: saving, auto classes, compiling, exporting, outputs."""

import json
import textwrap

import pytest
import torch
import transformers
import yaml
from errors import raises
from full_members import member
from model_cases import CASES, SIZES, TASKS, TOKENS, checkpoint_activations
from qacg_models import CGBertConfig, PlainBertConfig, QACGBertConfig
from safetensors.torch import load_file

# Their answers depend on a context, which the pipeline of text classification does not pass.
ASPECT_MODELS = tuple(f"{name}ForSequenceClassification" for name in ("QACGBert", "CGBert", "AspectBert"))
every_model = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def same(mine, expected, **tolerance):
    """Two outputs with the same entries."""
    assert list(mine) == list(expected)
    for name in expected:
        torch.testing.assert_close(mine[name], expected[name], msg=lambda text, n=name: f"{n}: {text}", **tolerance)


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def same_gradients(mine, expected):
    assert mine.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(mine[name], expected[name], msg=lambda text, n=name: f"{n}: {text}")


@every_model
def test_model_saves_and_loads_whole_and_sharded(case, tmp_path):
    model = case.build()
    expected = model(**case.inputs, **case.labels)
    for size in ("1GB", "3KB"):
        folder = tmp_path / size
        model.save_pretrained(folder, max_shard_size=size)
        shards = list(folder.glob("*.safetensors"))
        assert (len(shards) > 1) == (folder / "model.safetensors.index.json").exists()
        assert (size == "3KB") == (folder / "model.safetensors.index.json").exists()
        assert {name for shard in shards for name in load_file(shard)} == set(model.state_dict())
        loaded, info = case.model_class.from_pretrained(folder, output_loading_info=True)
        assert info["report"].clean
        assert set(info["report"].loaded)
        assert not loaded.training
        same(loaded(**case.inputs, **case.labels), expected, rtol=0, atol=0)
        loaded.save_pretrained(folder, max_shard_size=size)  # overwrites the file that it was loaded from
        same(case.model_class.from_pretrained(folder)(**case.inputs, **case.labels), expected, rtol=0, atol=0)


@every_model
def test_auto_classes_load_the_model(case, tmp_path):
    model = case.build()
    model.save_pretrained(tmp_path)
    assert type(transformers.AutoConfig.from_pretrained(tmp_path)) is case.config_class
    auto = getattr(transformers, case.auto)
    assert type(auto.from_config(model.config)) is case.model_class
    loaded = auto.from_pretrained(tmp_path)
    assert type(loaded) is case.model_class
    same(loaded(**case.inputs), model(**case.inputs), rtol=0, atol=0)


@every_model
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_repeats_dropout(case, reentrant):
    found = []
    for checkpointing in (False, True):
        model = case.build(dropout=0.3).train()
        if checkpointing:
            checkpoint_activations(model, reentrant)
            assert any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
        torch.manual_seed(7)
        case.scalar(model).backward()
        found.append(gradients(model))
    same_gradients(found[1], found[0])


@every_model
def test_gradients_of_two_passes_add_up(case):
    """Gradients are accumulated over two passes; tensors that shared memory would be added twice."""
    model, found = case.build(dropout=0.0).train(), []
    for passes in (1, 2):
        model.zero_grad()
        for _ in range(passes):
            case.scalar(model).backward()
        found.append({name: one.grad for name, one in model.named_parameters() if one.grad is not None})
    once, twice = found
    largest = max(float(one.abs().max()) for one in once.values())
    for name, gradient in once.items():
        torch.testing.assert_close(twice[name], 2 * gradient, rtol=1e-4, atol=1e-6 * largest, msg=name)


COMPILERS_CASE = "QACGBertForSequenceClassification"  # in the default run; compiling takes seconds
COMPILED = [
    member(case, implementation, id=f"{name}-{implementation}", fast=(name, n) == (COMPILERS_CASE, 0))
    for name, case in TASKS.items()
    for n, implementation in enumerate(case.implementations if name == COMPILERS_CASE else case.implementations[:1])
]


@pytest.mark.compiles
@pytest.mark.parametrize("case, implementation", COMPILED)
def test_compiled_model_matches_eager_execution(case, implementation):
    torch.compiler.reset()  # compiled models of other tests count towards the recompile limit
    model = case.build(dropout=0.0).train()
    model.set_attn_implementation(implementation)
    # With maps, "sdpa" and "fused" would not run.
    requested = {"output_hidden_states": True, "output_attentions": implementation == "eager" and not case.is_head}
    expected = model(**case.inputs, **case.labels, **requested)
    expected.loss.backward()
    true = gradients(model)
    model.zero_grad()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    mine = compiled(**case.inputs, **case.labels, **requested)
    mine.loss.backward()
    same(mine, expected)
    same_gradients(gradients(model), true)


@pytest.mark.compiles
@pytest.mark.parametrize("case", [member(case, id=name, fast=name == COMPILERS_CASE) for name, case in TASKS.items()])
@pytest.mark.full
def test_exported_model_accepts_other_batches_and_lengths(case):
    model = case.build()
    model.config.return_dict = False
    batch, length, count = (torch.export.Dim(name, max=16) for name in ("batch", "length", "count"))
    shapes = {name: {0: batch, 1: length} for name in TOKENS}
    shapes |= {name: {0: batch} if t.dim() == 1 else {0: batch, 1: count} for name, t in case.extra.items()}
    program = torch.export.export(model, (), case.inputs, dynamic_shapes=shapes).module()
    for rows, columns in ((2, 8), (1, 7)):
        part = {name: t[:rows] for name, t in case.inputs.items()}
        part |= {name: part[name][:, :columns] for name in TOKENS}
        for mine, expected in zip(program(**part), model(**part), strict=True):
            torch.testing.assert_close(mine, expected)


@every_model
def test_embeddings_can_be_resized(case, tmp_path):
    model = case.build()
    before = model(**case.inputs)
    model.resize_token_embeddings(40)
    assert model.get_input_embeddings().weight.shape == (40, 12)
    same(model(**case.inputs), before)
    assert model.config.get_text_config().vocab_size == 40
    for top, fine in ((39, True), (40, False)):
        ids = case.inputs["input_ids"].masked_fill(TOKENS["input_ids"] == 30, top)
        if fine:
            model(**{**case.inputs, "input_ids": ids})
        else:
            expected = r"input_ids: expected 0 to 39 \(vocab_size is 40\), got values from 0 to 40"
            with pytest.raises(ValueError, match=expected):
                model(**{**case.inputs, "input_ids": ids})
    model.save_pretrained(tmp_path)
    same(case.model_class.from_pretrained(tmp_path)(**case.inputs), before)
    model.resize_token_embeddings(31)
    same(model(**case.inputs), before)


@every_model
def test_attention_maps_are_returned_on_request(case):
    model = case.build(dropout=0.0)
    if case.is_head:  # an encoder of transformers returns maps with "eager" only
        model.set_attn_implementation("eager")
    plain = model(**case.inputs)
    out = model(**case.inputs, output_attentions=True)
    assert [t.shape for t in out.attentions] == [(2, 3, 8, 8)] * 2
    for name in plain:
        torch.testing.assert_close(out[name], plain[name])
    maps = out.softmax_maps if "softmax_maps" in out else out.attentions
    for p in maps:
        torch.testing.assert_close(p.sum(-1), torch.ones(2, 3, 8))
        assert not p[1, :, :, 6:].any(), "padding"
    assert len(model(**case.inputs, output_hidden_states=True).hidden_states) == 3
    model.set_attn_implementation("eager")  # transformers raises an error with any other
    model.config.output_attentions = model.config.output_hidden_states = True
    asked = model(**case.inputs)
    assert len(asked.attentions) == 2 and len(asked.hidden_states) == 3


@every_model
def test_attn_implementation_is_set_everywhere(case, tmp_path):
    found = {}
    for implementation in case.implementations:
        model = case.build(attn_implementation=implementation)
        assert model.config._attn_implementation == implementation
        assert model.base_model.config._attn_implementation == implementation
        found[implementation] = model(**case.inputs)
    for implementation in case.implementations:
        same(found[implementation], found["eager"], rtol=1e-4, atol=1e-5)
    model = case.build()
    assert model.config._attn_implementation == case.implementations[0]
    model.save_pretrained(tmp_path)
    for implementation in case.implementations:
        model.set_attn_implementation(implementation)
        same(model(**case.inputs), found[implementation], rtol=0, atol=0)
        loaded = case.model_class.from_pretrained(tmp_path, attn_implementation=implementation)
        assert loaded.base_model.config._attn_implementation == implementation
    for wrong in (
        lambda: case.build(attn_implementation="flash_9"),
        lambda: case.model_class.from_pretrained(tmp_path, attn_implementation="flash_9"),
        lambda: model.set_attn_implementation("flash_9"),
    ):
        with raises("ValueError: flash_9"):
            wrong()


@every_model
def test_outputs_are_model_outputs_or_tuples(case):
    model = case.build()
    out = model(**case.inputs, **case.labels)
    assert isinstance(out, transformers.utils.ModelOutput) and ("loss" in out) == bool(case.labels)
    assert "attentions" not in out and "hidden_states" not in out
    as_tuple = model(**case.inputs, **case.labels, return_dict=False)
    assert type(as_tuple) is tuple and len(as_tuple) == len(out)
    assert all(torch.equal(mine, expected) for mine, expected in zip(as_tuple, out.to_tuple()))
    model.config.return_dict = False
    assert type(model(**case.inputs)) is tuple


@every_model
def test_model_card_is_complete_and_never_overwritten(case, tmp_path):
    model = case.build()
    model.save_pretrained(tmp_path / "a")
    card = (tmp_path / "a" / "README.md").read_text()
    assert card == model.model_card()
    front, _, text = card.removeprefix("---\n").partition("---\n")
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "pipeline_tag": "aspect-sentiment" if case.model in ASPECT_MODELS else case.task,
        "tags": [case.config_class.model_type],
    }
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in text
    assert "12 hidden units" in text and "a vocabulary of 31" in text
    code = textwrap.dedent("".join(line for line in text.splitlines(True) if line.startswith("    ")))
    exec(code.replace("FOLDER", repr(str(tmp_path / "a"))), {})
    assert f"model = {case.model}.from_pretrained(FOLDER)" in text
    for name, value in case.settings.items():
        if name not in ("num_labels",):  # stored as names of the labels
            assert f"| `{name}` | `{json.dumps(value)}` |" in text
    (tmp_path / "a" / "README.md").write_text("mine")
    model.save_pretrained(tmp_path / "a")
    assert (tmp_path / "a" / "README.md").read_text() == "mine"
    model.save_pretrained(tmp_path / "b", is_main_process=False)
    assert not (tmp_path / "b" / "README.md").exists()


@every_model
def test_config_round_trip_is_equal(case, tmp_path):
    written = case.make_config(dropout=0.25)
    path = tmp_path / "written.json"
    for text in (written.to_json_string(), written.to_json_string(use_diff=False)):
        assert text.endswith("}\n")
        path.write_text(text)
        assert case.config_class.from_json_file(path) == written
        assert case.config_class.from_dict(json.loads(text)) == written
    assert case.config_class.from_dict(written.to_dict()) == written
    assert written != case.make_config(dropout=0.5)
    written.save_pretrained(tmp_path)
    assert transformers.AutoConfig.from_pretrained(tmp_path) == written


# The fields of published configurations, with values that are not the defaults.
SEED_FIELDS = {
    **SIZES,
    "hidden_act": "relu",
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.3,
    "initializer_range": 0.05,
}


@pytest.mark.parametrize("config_class", [PlainBertConfig, CGBertConfig, QACGBertConfig])
def test_config_reads_the_published_fields(config_class, tmp_path):
    path = tmp_path / "bert_config.json"
    for pooler in ({}, {"full_pooler": True}, {"full_pooler": False}):
        path.write_text(json.dumps({**SEED_FIELDS, **pooler}, indent=2, sort_keys=True) + "\n")
        read = config_class.from_json_file(path)
        assert {name: getattr(read, name) for name in SEED_FIELDS} == SEED_FIELDS
        assert {name: read.to_dict()[name] for name in SEED_FIELDS} == SEED_FIELDS
        assert read.pooler == ("attention" if pooler.get("full_pooler") else "cls")
        assert config_class.from_dict(json.loads(read.to_json_string())) == read
    other = {"A_prob_dropout_prob": 0.3, **SEED_FIELDS}
    del other["attention_probs_dropout_prob"]
    if config_class is CGBertConfig:
        assert CGBertConfig.from_dict(other).attention_probs_dropout_prob == 0.3
        with raises("TypeError: A_prob_dropout_prob: ...got an unknown name. Did you mean 'attention_pro"):
            CGBertConfig.from_dict({**other, "attention_probs_dropout_prob": 0.1})
    else:
        with raises("TypeError: A_prob_dropout_prob: ...got an unknown name. Did you mean 'attention_pro"):
            config_class.from_dict(other)


def test_model_card_escapes_bars_in_names():
    model = CASES["QACGBertModel"].build(contexts=["price|value", "Größe"])
    assert '| `contexts` | `["price\\|value", "Größe"]` |' in model.model_card()
