"""Smaller runs in place of a recipe: the fidelity of a burst, and the proxy recipe that it runs."""

from trainer.fidelity.fidelity import Fidelity, NoProxy, NoProxyKind, at_fidelity, fidelities_of, full_size, proxy_of

__all__ = ["Fidelity", "NoProxy", "NoProxyKind", "at_fidelity", "fidelities_of", "full_size", "proxy_of"]
