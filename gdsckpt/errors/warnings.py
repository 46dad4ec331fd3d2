"""Warnings of gdsckpt."""


class GdsckptWarning(UserWarning):
    """Base of all warnings of gdsckpt."""


class FallbackWarning(GdsckptWarning):
    """The user gets less than was asked for; the text says what and why."""


class UnverifiedWarning(GdsckptWarning):
    """A file carries no checksums, so its bytes cannot be checked."""


class StaleSaveWarning(GdsckptWarning):
    """Two steps that follow one another were saved with the same values, bit by bit."""


class DamagedCheckpointWarning(GdsckptWarning):
    """A checkpoint could not be used and another one was taken; the text says which and why."""
