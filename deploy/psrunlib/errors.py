"""The one exception that ends psrun with a message and without a traceback."""


class JobError(Exception):
    pass
