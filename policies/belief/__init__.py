"""What a study believes of its cluster: the closed forms of `trainer.estimate`, corrected burst by burst.

`factors` says what may be moved and how far before any burst, `evidence` what a burst says, `time` and `memory` put the
two together; all are pure functions of the trials.
"""
