"""A study of ways to ask one text about many aspects: accuracy beside the cost of an aspect."""
