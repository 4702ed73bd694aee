"""The demo of `qacg demo` and `make run`."""
