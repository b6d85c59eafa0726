"""Output of runs for people: tables on a terminal, HTML pages, traces for a viewer."""
