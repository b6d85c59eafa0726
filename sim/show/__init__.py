"""Show runs to people: tables on a terminal, HTML pages, traces for a viewer."""
