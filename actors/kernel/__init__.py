"""The actor kernel: mailboxes, replies, streams, the clock and the tap (docs/kernel.md)."""
