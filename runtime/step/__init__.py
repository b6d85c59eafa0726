"""Describe one step as numbers, without a device: what it computes, scores, drafts and pads."""
