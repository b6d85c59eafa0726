"""Drafts by prompt lookup: what followed the last time that the request's latest tokens occurred.

vLLM's rule: of all n-grams at the end of the tokens, with n from `least` to `most`, the longest that has
occurred before, in the place where it occurred first.
"""

import numpy as np

from runtime.step.step import Ints


def lookup(token_T: Ints, *, least: int, most: int, num_drafts: int) -> Ints:
    """Up to `num_drafts` tokens that may follow, none if no n-gram has occurred before. O(T × n)."""
    last = len(token_T) - 1
    end_M = np.flatnonzero(token_T[:last] == token_T[last])
    length = 1
    while length < most and len(end_M):
        longer_M = end_M[end_M >= length]
        longer_M = longer_M[token_T[longer_M - length] == token_T[last - length]]
        if not len(longer_M):
            break
        end_M, length = longer_M, length + 1
    if length < least or not len(end_M):
        return token_T[:0]
    first = int(end_M[0]) + 1
    return token_T[first : first + num_drafts]
