"""Time of a step by part, how sure it is, and the constants it rests on."""
