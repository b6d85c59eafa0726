"""Steps on a device that computes while the host goes on: uploads, downloads, and data that stays.

One upload takes all arrays of a step to the device, sampled tokens stay there for the next step, and a
download brings them to the host while that step runs. All of it but `graphs.py` also runs on a CPU, where
tests compare it with the plain path.
"""
