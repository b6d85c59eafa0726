"""Cost of a step: its work in counts, and models that turn work into seconds.

`tables/` has measured kernels, `roofline.py` is used where nothing was measured, `overhead.py` is the host's
share, `calibrated.py` is fitted to one machine. To add a model, subclass `CostModel` (`work.py`) and make it
in `sundog.sim.target.Target`.
"""
