"""What deploy/psrun is made of; each file says what it does. cli.py begins.

Only Python's standard library is used: a cluster's nodes may have nothing else.
"""
