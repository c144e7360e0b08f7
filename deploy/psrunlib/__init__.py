"""What deploy/psrun is made of, in reading order.

errors     the one exception that ends psrun with a message
job        a job, and the processes ("parts") that it consists of
screen     prefixed lines, and rank 0's progress bar in place
local      parts as processes of this machine
supervise  starts the parts, watches them, ends them together
report     the table at the end, from summary.json
cli        the command line

Python's standard library alone: a cluster's nodes have nothing else.
"""
