"""Errors that a user can act on: what was wrong, the value seen, what to do."""


class RecapError(Exception):
    """Base of all errors raised on purpose; the command prints them without a traceback."""


class InputError(RecapError):
    """A file, folder or array given by the user cannot be used."""


class SettingsError(RecapError):
    """A setting is unknown or has an impossible value."""


class WeightsError(RecapError):
    """The weights of an encoder are missing, damaged or not the ones expected."""


class BundleError(RecapError):
    """A saved detector is incomplete or does not fit this installation."""


class TrainingError(RecapError):
    """Training cannot go on."""


class OtherFitError(TrainingError):
    """A folder for unfinished work holds that of another fit."""
