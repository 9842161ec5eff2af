"""Errors that a user can cause: one clear message each, no traceback at the command line."""

from __future__ import annotations


class RopewalkError(Exception):
    """What is wrong, where, and what to do about it, in one message."""


class ConfigError(RopewalkError):
    """The sweep file, or a value set on the command line, says nothing that can be run."""


class ModelError(RopewalkError):
    """A model cannot be found, loaded or measured."""


class DataError(RopewalkError):
    """Documents are missing, unreadable or too short."""


class UnreachableError(RopewalkError):
    """Something elsewhere (a hub) did not answer; with a connection the same might work."""


class UnreachableModelError(ModelError, UnreachableError):
    """A model that is not on this machine cannot be had from the hub."""


class UnreachableDataError(DataError, UnreachableError):
    """A dataset cannot be had."""
