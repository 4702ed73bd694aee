"""The application: aspect-based sentiment, from tables to trained models, predictions and reports.

| subject | module |
|---|---|
| a task, its examples, and errors of rows | `example.py` |
| a file as a DataFrame of texts | `tables.py` |
| columns of tables; the text of a cell; labelled rows | `columns.py` |
| readers of published data, and the detection of formats | `formats.py` |
| data sets, their splits, and warnings about them | `dataset.py`, `data_warnings.py` |
| options of data and training; the record of a run | `options.py`, `record.py` |
| tokenizers, features and batches | `encoding.py` |
| metrics, calibration, the TF-IDF baseline | `metrics.py`, `calibration.py`, `tfidf.py` |
| training | `training/` |
| a trained model and its folder | `trained_model.py` |
| predictions of a DataFrame, and the lines of their file | `predictor.py` |
| predictions of batches in the processes of an engine | `engines.py` |
| the pipeline of transformers; classes for DataFrames and scikit-learn | `pipeline.py`, `estimators.py` |
| checks of data, aspects for texts without labels | `checks.py`, `suggest.py` |
| ONNX files | `export.py` |
| pages and tables of results | `report/` |
| the demo | `demo.py` |
"""
