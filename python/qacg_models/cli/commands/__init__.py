"""The subcommands of `qacg`, one module each: what it says of itself, its arguments, and running it.

A module has HELP (one line) and, where there is more to say, DESCRIPTION; `add_arguments(parser)`; and
`run(arguments)`, which returns the exit status. Importing one costs nothing: heavy imports wait for `run`.
"""
