"""The subcommands of `qacg`, one module each: what it says of itself, its arguments, and running it.

A module has HELP (one line) and, where there is more to say, DESCRIPTION; USES_MODELS where it loads torch and
transformers; `add_arguments(parser)`; and `run(arguments)`, which returns the exit status. Importing a
module costs nothing: heavy imports wait for `run`.
"""
