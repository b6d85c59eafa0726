"""LoRA adapters: peft's files, and the layers that add an adapter's change to its rows."""
