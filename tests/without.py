"""Command line with a missing module: `python -m tests.without MODULE COMMAND...`."""

import sys

if __name__ == "__main__":
    sys.modules[sys.argv.pop(1)] = None  # type: ignore[assignment]  # an import of it fails as if it were missing
    from sundog.__main__ import main

    main()
