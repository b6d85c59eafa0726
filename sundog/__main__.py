"""`sundog` and `python -m sundog`: the command line, whose import is already a part of the command."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C may come while it is imported, and ends that in one line too."""
    try:
        from sundog.cli import main as run

        run()
    except KeyboardInterrupt:
        print("sundog: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
