"""Launch scripts in general: argument lists, launchers in front of the command, containers, jobs, variables, login
shells. Imports and recordings read them, exports and bursts write them. Nothing here depends on a framework."""
