"""The surrogate of one cluster: the closed forms of `trainer.estimate`, calibrated burst by burst.

`factors` lists what may be calibrated and its prior, `evidence` what a trial measured; `time` and `memory` combine the
two. All are pure functions of the trials.
"""
