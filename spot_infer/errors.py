"""The one error class that means "the user can fix this": a sentence, no traceback, exit code 2."""


class SpotError(Exception):
    """Bad input. The message names the file or field, says what is wrong and what to do."""
