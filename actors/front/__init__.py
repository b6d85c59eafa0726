"""Front of the engine: from a prompt to a submitted request, from tokens to a stream of text.

`async_llm.py` is the actor. `intake.py` and `prompts.py` turn a prompt into a request, `active_request.py`
turns its tokens into text.
"""
