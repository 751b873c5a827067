"""The surrogate of one cluster: the closed forms of `trainer.estimate`, calibrated with every burst.

`factors` lists the constants that bursts calibrate and their priors, `evidence` the measurements of a trial; `time` and
`memory` combine the two. All are pure functions of the trials.
"""
