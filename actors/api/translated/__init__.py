"""OpenAI's responses and Anthropic's messages, translated to chats and back."""
