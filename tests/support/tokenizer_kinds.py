"""Tokenizers like those of other encoders than BERT, trained on given texts by the library tokenizers."""

import json

from qacg_models.sentiment.encoding import train_tokenizer
from tokenizers import Regex, Tokenizer, decoders as decoding, models, normalizers, pre_tokenizers, processors, trainers

# By kind, the model_type of an encoder: the ids of the first token, the separator and the padding.
KINDS = {"roberta": (0, 2, 1), "xlm-roberta": (0, 2, 1), "modernbert": (1, 2, 3), "electra": (2, 3, 0)}
_ANGLED = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_BRACKETED = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]


def write_tokenizer(kind, texts, folder, size=600):
    """Writes tokenizer.json as in published folders, which do not name special tokens; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _trained(kind, list(texts), size).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 512}))
    return folder


def _trained(kind, texts, size):
    if kind == "electra":
        return train_tokenizer(texts, size).backend_tokenizer
    options = {"vocab_size": size, "show_progress": False}
    if kind == "xlm-roberta":
        made = Tokenizer(models.Unigram())
        made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
        made.decoder = decoding.Metaspace()
        trainer = trainers.UnigramTrainer(special_tokens=_ANGLED, unk_token="<unk>", **options)
        pair, ends = "<s> $A </s> </s> $B </s>", [("<s>", 0), ("</s>", 2)]
        made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair=pair, special_tokens=ends)
    else:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoding.ByteLevel()
        names, letters = _ANGLED if kind == "roberta" else _BRACKETED, pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(special_tokens=names, initial_alphabet=letters, **options)
        made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    if kind == "modernbert":
        made.normalizer = normalizers.NFC()
        # Token types of 1, which a model without token types must not read.
        pair, ends = "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 1), ("[SEP]", 2)]
        made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair=pair, special_tokens=ends)
    made.train_from_iterator(texts, trainer)
    return made
