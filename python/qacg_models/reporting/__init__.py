"""Reports: tables, offline HTML pages and plots.

| subject | module |
|---|---|
| tables of metrics with notes | `tables.py`, `result_tables.py` |
| records of several runs, and tables of them | `run_records.py` |
| calibration of probabilities | `confidence.py` |
| scores by label and aspect, confusion matrix, errors | `breakdown.py` |
| the page of `qacg evaluate` | `evaluation_page.py` |
| the page of `qacg analyze` | `analysis_page.py`, `attention_maps.py`, `token_scores.py`, `map_viewer.py` |
| the page of `qacg predict --summary` | `prediction_summary.py`, `summary_page.py` |
| the page of `qacg export --to page` | `model_page.py`, `tokenizer_facts.py` |
| offline HTML reports | `html_report.py`, `page/` |
| plots | `heatmaps.py` |
| captions of plots | `captions.py` |
| coloured text and tables | `coloured_text.py` |
"""
