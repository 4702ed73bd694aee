"""The forwards of QACG-BERT, CG-BERT and BERT stand in their own files, and say and do the same where they share.

Each file is to be read on its own, so there is no base class; these tests hold the copies equal.
"""

import ast
import inspect
import re
import textwrap

import pytest
from qacg_models import (
    BertForSequenceClassification,
    BertModel,
    CGBertForSequenceClassification,
    CGBertModel,
    QACGBertForSequenceClassification,
    QACGBertModel,
)

ENCODERS = (QACGBertModel, CGBertModel, BertModel)
CLASSIFIERS = (QACGBertForSequenceClassification, CGBertForSequenceClassification, BertForSequenceClassification)
# What a model has that another has not, and what maps are: text and code of these may differ. BERT has the last
# two for its heads.
OWN = {"context_ids", "output_lambda", "output_gates", "head_mask", "tokens_only"}
OWN_OUTPUTS = {"softmax_maps", "quasi_maps", "lambdas", "query_gates", "key_gates"}
SHARED_TEXTS = (
    *("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "cu_seqlens", "max_seqlen"),
    *("pooled_only", "output_hidden_states", "return_dict"),
)


def parameters(model):
    signature = inspect.signature(model.forward)
    return [(p.name, p.kind, p.default, p.annotation) for p in signature.parameters.values() if p.name not in OWN]


def sections(model):
    """The docstring of a forward: its first line and its errors, and the text of each argument."""
    text = inspect.getdoc(model.forward)
    head, _, rest = text.partition("Args:")
    arguments, _, errors = rest.partition("Raises:")
    entries = re.split(r"\n(?=\w)", textwrap.dedent(arguments.strip("\n")).rstrip())
    return head, errors, dict(entry.split(": ", 1) for entry in entries)


class Neutral(ast.NodeTransformer):
    """Takes what is a model's own out of a forward: its arguments, its outputs, its name, its docstring."""

    def visit_FunctionDef(self, node):
        node.args, node.returns = ast.arguments([], [], None, [], [], None, []), None
        node.body = node.body[1:]
        return self.generic_visit(node)

    def visit_Call(self, node):
        node.keywords = [k for k in node.keywords if k.arg not in OWN | OWN_OUTPUTS]
        node.args = [a for a in node.args if not (isinstance(a, ast.Name) and a.id in OWN)]
        if isinstance(node.func, ast.Name) and node.func.id.endswith("Output"):
            node.func.id = "Output"
        return self.generic_visit(node)


def code(model):
    return ast.unparse(Neutral().visit(ast.parse(textwrap.dedent(inspect.getsource(model.forward)))))


@pytest.mark.parametrize("models", [ENCODERS, CLASSIFIERS], ids=["encoders", "classifiers"])
def test_forwards_take_the_same_arguments(models):
    assert parameters(models[0]) == parameters(models[1]) == parameters(models[2])


@pytest.mark.parametrize("models", [ENCODERS, CLASSIFIERS], ids=["encoders", "classifiers"])
def test_forwards_are_documented_alike(models):
    found = [sections(model) for model in models]
    for head, errors, _ in found:
        assert head == found[0][0]
        assert re.sub(r"`\w+`", "", errors) == re.sub(r"`\w+`", "", found[0][1])
    for name in SHARED_TEXTS if models is ENCODERS else ("labels",):
        texts = {arguments[name] for _, _, arguments in found}
        assert len(texts) == 1 and texts != {""}, name


def test_classifiers_do_the_same():
    first = code(CLASSIFIERS[0])
    assert "self.bert(" in first and "lambda" not in first
    assert [code(model) for model in CLASSIFIERS] == [first] * 3


def test_encoders_with_contexts_do_the_same_up_to_their_maps():
    parts = [code(model).partition("(embedded, context_embedding")[0] for model in ENCODERS[:2]]
    assert parts[0] == parts[1] and "read_batch(" in parts[0]
    ends = [re.search(r"last_hidden_state=.*?hidden_states=[^,]*,", code(m), re.DOTALL)[0] for m in ENCODERS[:2]]
    assert ends[0] == ends[1]


def test_encoders_read_their_inputs_alike():
    def reading(model):
        tree = ast.parse(textwrap.dedent(inspect.getsource(model.forward)))
        call = next(n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "read_batch")
        return [ast.unparse(a) for a in call.args]

    assert reading(ENCODERS[0]) == reading(ENCODERS[1]) == reading(ENCODERS[2])


def test_a_copy_that_differs_is_seen():
    source = inspect.getsource(CLASSIFIERS[1].forward)
    changed = source.replace("pooled_only=not output_hidden_states", "pooled_only=True")
    other = ast.unparse(Neutral().visit(ast.parse(textwrap.dedent(changed))))
    assert other != code(CLASSIFIERS[0])
