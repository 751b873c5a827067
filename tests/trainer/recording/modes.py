"""The isolations in which a run of the tests tried hostile lines, each with whose processes they were."""

MODES: list[str] = []
