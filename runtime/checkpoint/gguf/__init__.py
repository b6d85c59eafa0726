"""Reader of GGUF files, llama.cpp's format, as configuration, tokenizer and weights."""
