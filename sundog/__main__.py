"""`python -m sundog` is the command line."""

from sundog.cli import main

if __name__ == "__main__":
    main()
