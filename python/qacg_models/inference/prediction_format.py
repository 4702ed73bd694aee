"""Predictions as lines of CSV or JSONL."""

import json
from dataclasses import dataclass

import pandas as pd

from qacg_models.data.task import Task

FORMATS = ("csv", "jsonl")
DIGITS = 6  # decimals of a probability


@dataclass(frozen=True)
class PredictionFormat:
    """The format of a file of predictions.

    A line has the input line, the columns of `Predictor.predict`, and the other columns of the input (in JSONL the
    objects `probabilities` and `columns`).

    Attributes:
        data_format: "csv" or "jsonl".
        task: task of the model.
        others: names of the input's other columns, which are copied; in a CSV, a column with the name of an output
            field becomes `NAME (input)`.
    """

    data_format: str
    task: Task
    others: tuple[str, ...] = ()

    def lines(self, found: pd.DataFrame, table: pd.DataFrame, header: bool = True) -> str:
        """Returns predictions as lines, each with its line end.

        Args:
            found: the predictions, from `Predictor.predict`; the index has positions in `table`.
            table: the input, with the columns `others`; the index has the line numbers.
            header: whether the lines of a CSV begin with the header.
        """
        shares = [f"p({label})" for label in self.task.labels]
        fields = found.drop(columns=shares)
        fields.insert(0, "line", table.index[found.index])
        others = table[[*self.others]].iloc[found.index]
        if self.data_format == "jsonl":
            plain = fields.astype(object).where(fields.notna(), None)
            probabilities = found[shares].round(DIGITS).set_axis(self.task.labels, axis=1).to_dict("records")
            copies = others.to_dict("records")
            return "".join(self._json_line(*row) for row in zip(plain.to_dict("records"), probabilities, copies))
        cells = pd.concat([fields, found[shares]], axis=1)
        for name in self.others:
            own = name
            while own in cells:
                own = f"{own} (input)"
            cells[own] = others[name].to_numpy()
        return cells.to_csv(index=False, header=header, lineterminator="\n", float_format=f"%.{DIGITS}f")

    def _json_line(self, fields: dict, probabilities: dict, others: dict) -> str:
        fields["probabilities"] = None if fields["label"] is None else probabilities
        if self.others:
            fields["columns"] = others
        return json.dumps(fields, ensure_ascii=False) + "\n"
