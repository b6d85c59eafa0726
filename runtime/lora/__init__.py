"""LoRA adapters: peft's files, and the layers that add an adapter's part to the rows that asked for it."""
