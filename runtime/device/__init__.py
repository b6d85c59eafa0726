"""A step on a device that computes while the host goes on: what goes there, what comes back, what stays.

One upload takes all arrays of a step there, sampled tokens stay there for the next step, and a download
brings them to the host while that step runs. All of it but `graphs.py` is the same on a CPU, where the tests
hold it against the plain path.
"""
