"""What deploy/psrun is made of, in reading order.

errors     the one exception that ends psrun with a message
ports      ports that nobody listens on
places     where the programs are; the version
job        a job, and the processes ("parts") that it consists of
hosts      the hostfile, and which part runs on which host
shares     which part of the parameters each server holds
out        the folder of results and logs
screen     prefixed lines, and rank 0's progress bar in place
local      parts as processes of this machine
remote     parts as processes of other hosts, over ssh
traceback  the error that a Python program ends with
watched    one running part: its output, what it has said, and its end
supervise  starts the parts, watches them and ends them together
restarts   starts a part that has died again, and tells from where the job goes on
report     the table at the end, from summary.json
doctor     psrun --doctor: checks before a job starts
verify     psrun --verify: compares both modes
cli        the command line

Only Python's standard library is used: a cluster's nodes may have nothing else.
"""
