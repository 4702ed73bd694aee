"""Results for people: tables, pages, figures.

| question | its home |
|---|---|
| tables of metrics, and what is said beside them | `tables.py`, `result_tables.py` |
| records of several runs side by side | `run_records.py` |
| how far probabilities may be believed | `confidence.py`, `evaluation_page.py` |
| a page that needs no network | `html_report.py`, `page/` |
| what a picture tells, in plain words | `captions.py` |
| numbers as coloured text and tables | `coloured_text.py` |
| what a model looked at | `analysis_page.py`, `attention_maps.py`, `token_scores.py`, `heatmaps.py`, `map_viewer.py` |
"""
