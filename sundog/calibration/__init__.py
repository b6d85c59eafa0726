"""Cost models fitted to an engine, a server or a log: what `sundog.calibrate` and `sundog calibrate` do."""
