"""Counts sentences by length: `python -m benchmarks.sentences --data DIR --tokenizer VOCABULARY`.

`cases/sentihood_lengths.json` holds such counts for the operators' benchmarks.
"""

import argparse
import json
import sys
from collections import Counter

from qacg_models.errors import InputError

from benchmarks.steps.sentences import default_data, load_sentences


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sentences", description="Counts the sentences of each length, as JSON."
    )
    parser.add_argument("--data", default=default_data(), help="folder with the split train (QACG_DATA/sentihood)")
    parser.add_argument("--tokenizer", help="folder or vocabulary; without it one is learned from the split")
    options = parser.parse_args(arguments)
    try:
        sentences = load_sentences(options.data, options.tokenizer)
    except InputError as error:
        print(error, file=sys.stderr)
        return 1
    counts = Counter(len(features["input_ids"]) for features in sentences.features)
    print(json.dumps({"source": sentences.source, "counts": {str(n): counts[n] for n in sorted(counts)}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
