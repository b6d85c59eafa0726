"""What adapts Hypercorn, which serves HTTP/1.1 and HTTP/2 on Trio, and Quart, which routes.

`server` has Hypercorn serve and stop; `quart_app` makes the app and carries its answers.
"""
