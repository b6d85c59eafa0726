"""The documentation as a site: `make docs` writes it to build/site."""
