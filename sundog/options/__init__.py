"""Table of options: each is declared once, for command lines, sweeps and files.

A row is a field of one of the frozen records in this package, with its type, default, kind (which holds the
bounds), help and section:

    max_num_seqs: int | None = option(None, Whole(1, 2**20), "Most requests at once.", to=SCHEDULER)

That row defines the option `--max-num-seqs` of every command that takes the record, the axis `--vary
max-num-seqs=…` of a sweep, the key `max_num_seqs` of a `config.toml`, its refusal ("--max-num-seqs is 0: give
a whole number from 1 to 1,048,576"), and, with `to`, the field of the same name in the configuration. A
command reads it as a typed attribute.

To add an option, add one such line:

- to `EngineOptions` (engine.py) if every world has it: `serve`, `replay` and `sweep` take it at once. With
  `to=SCHEDULER` or `to=ENGINE` it must have the name of the field of `SchedulerConfig` or `EngineConfig`
  that it sets, and nothing else needs to be written; None leaves that field to its own default.
- to `TargetOptions`, `LoadOptions` or `TermsOptions` (simulation.py) if only simulations have it, to
  `Serving` (serving.py) if only servers do, or to the record beside the one command that takes it.

`section` puts it under a heading of its own: `COMMON` for what most people need, which `--help` shows, a line
an option, one of the other headings for the rest, which `--help` only names. `names` are other spellings
(vLLM's). A `rare` option is named at the end of the help, as one for `--set NAME=VALUE`; its flag is taken as
before. docs/options.md has all options (tools/option_table.py). `kept=False` is for places of results, which
change none of them: it is left out of a run's config.toml. `AnyText(is_path=True)` may name a file, which a
config.toml then gives relative to itself.
"""
