"""Adapters for Hypercorn, which serves HTTP/1.1 and HTTP/2 on Trio, and Quart, which routes.

`server` starts and stops Hypercorn; `quart_app` makes the app and sends its answers.
"""
