"""Recipes drawn at random: any knobs at any values they take, legal together or not."""

from typing import Any

from hypothesis import strategies as st

from trainer.recipe.knobs import KNOBS, Knob


def values_of(knob: Knob) -> st.SearchStrategy[Any]:
    """Values the knob takes."""
    domain = knob.domain
    whole = st.integers(int(domain.low or 0), int(domain.high or 64))
    values = {
        "bool": st.booleans(),
        "int": whole,
        "float": st.floats(domain.low or 0.0, domain.high or 8.0),
        "one": st.sampled_from(domain.words or ("",)),
        "any": st.lists(st.sampled_from(domain.words or ("",)), unique=True).map(tuple),
        "sizes": st.lists(whole, min_size=1, max_size=3).map(tuple),
        "text": st.sampled_from(["expandable_segments:True", "Et*4|t*4L"]),
    }[domain.kind]
    return values | st.none() if domain.nullable else values


changes = st.lists(st.sampled_from(sorted(KNOBS)), max_size=8, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: values_of(KNOBS[name]) for name in names})
)
