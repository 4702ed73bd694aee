"""Aspects proposed for unlabelled texts, and the sheet to label, which `qacg train` reads."""
