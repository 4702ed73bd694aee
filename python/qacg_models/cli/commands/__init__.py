"""The subcommands of `qacg`: a module each.

| name | content |
|---|---|
| `HELP` | one line |
| `DESCRIPTION` | text at the beginning of the command's help; optional, HELP by default |
| `USES_MODELS` | set if every run imports torch and transformers |
| `add_arguments(parser)` | adds the arguments of the command |
| `run(arguments)` | runs the command, and returns the exit status; raises InputError for input that cannot be used |

Importing a module is fast: `run` imports torch and transformers.
"""
