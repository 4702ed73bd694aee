"""Shared arguments of the forwards of BERT and QACG-BERT have the same defaults and descriptions."""

import inspect
import re
import textwrap

import pytest
from qacg_models import (
    BertForSequenceClassification,
    BertModel,
    QACGBertForSequenceClassification,
    QACGBertModel,
)

PAIRS = [(QACGBertModel, BertModel), (QACGBertForSequenceClassification, BertForSequenceClassification)]
DIFFERENT = {"context_ids", "output_lambda", "output_gates", "head_mask", "tokens_only"}
DESCRIBED_DIFFERENTLY = {"output_attentions"}


def parameters(model):
    signature = inspect.signature(model.forward)
    return [(p.name, p.kind, p.default, p.annotation) for p in signature.parameters.values() if p.name not in DIFFERENT]


def descriptions(model):
    """The text of each argument in the docstring of a forward."""
    text = inspect.getdoc(model.forward).partition("Args:")[2].partition("Returns:")[0]
    entries = re.split(r"\n(?=\w)", textwrap.dedent(text.strip("\n")).rstrip())
    found = dict(entry.split(": ", 1) for entry in entries)
    return {name: text for name, text in found.items() if name not in DIFFERENT | DESCRIBED_DIFFERENTLY}


@pytest.mark.parametrize("models", PAIRS, ids=["encoders", "classifiers"])
def test_forwards_have_the_same_arguments(models):
    assert parameters(models[0]) == parameters(models[1])


@pytest.mark.parametrize("models", PAIRS, ids=["encoders", "classifiers"])
def test_forwards_describe_shared_arguments_alike(models):
    assert descriptions(models[0]) == descriptions(models[1])
