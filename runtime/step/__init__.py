"""One step as numbers, without a device: its tokens, scored tokens, drafts and padding."""
