"""Reports: tables for the terminal, and offline HTML pages of evaluations, analyses, summaries and models."""
