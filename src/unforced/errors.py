"""The one exception a user is meant to see."""


class InputError(Exception):
    """Something the user gave is wrong: the message is one sentence that says what, where and what to do.

    The command line prints the message alone and exits with code 2.
    """
