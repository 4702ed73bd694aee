"""The subcommands of `qacg`, one module each.

A module has HELP (one line), optionally DESCRIPTION, USES_MODELS if every run imports torch and transformers,
`add_arguments(parser)`, `run(arguments)`, which returns the exit status, and optionally `arguments_to_resume(arguments,
given)`. Importing a module is fast: `run` does the heavy imports.
"""
