"""How many threads numpy begins when it is imported."""

import os


def one_thread() -> None:
    """One, for arrays as small as a simulation's: the others would only spin, 0.08 s of CPU each time.

    Before numpy is imported; who has set it otherwise is left alone. Processes begun later inherit it.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
