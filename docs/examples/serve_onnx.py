"""Serves an exported model without torch: FOLDER=mine uvicorn --app-dir docs/examples serve_onnx:app

FOLDER has model.onnx (`qacg export mine --to onnx --output mine/model.onnx`) and tokenizer.json.
"""

import json
import os
from pathlib import Path

import numpy as np
import onnxruntime
from fastapi import FastAPI
from pydantic import BaseModel, Field
from tokenizers import Tokenizer

FOLDER = Path(os.environ["FOLDER"])
session = onnxruntime.InferenceSession(FOLDER / "model.onnx")
facts = {name: json.loads(value) for name, value in session.get_modelmeta().custom_metadata_map.items()}
tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
tokenizer.enable_truncation(facts["max_length"])
tokenizer.enable_padding(pad_id=facts["pad_token_id"])
names = [given.name for given in session.get_inputs()]
app = FastAPI()


class Request(BaseModel):
    text: str = Field(min_length=1, max_length=20_000)


@app.post("/predict")
def predict(request: Request) -> list[dict]:
    """Returns label and probabilities of the text for every context (aspect) of the model."""
    contexts = facts["contexts"]
    pairs = [request.text if facts["context_standalone"] else (request.text, context) for context in contexts]
    rows = tokenizer.encode_batch(pairs)
    inputs = {
        "input_ids": [row.ids for row in rows],
        "attention_mask": [row.attention_mask for row in rows],
        "token_type_ids": [row.type_ids for row in rows],
        "context_ids": list(range(len(contexts))),
    }
    (logits,) = session.run(["logits"], {name: np.array(inputs[name], dtype=np.int64) for name in names})
    best, labels = logits.argmax(-1), facts["labels"]
    temperatures = np.broadcast_to(facts["temperatures"], len(labels))[best]
    scores = np.exp((logits - logits.max(-1, keepdims=True)) / temperatures[:, None])
    shares = (scores / scores.sum(-1, keepdims=True)).tolist()
    return [
        {"context": context, "label": labels[index], "probabilities": dict(zip(labels, share, strict=True))}
        for context, index, share in zip(contexts, best, shares, strict=True)
    ]
