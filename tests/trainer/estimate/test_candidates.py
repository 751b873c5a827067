"""Tables of candidates: knobs by column."""

from __future__ import annotations

import numpy as np

from tests.trainer.engines.gpu_recipes import on_gpus
from trainer.estimate.candidates import Candidates, Column


def test_combinations_are_the_different_rows_of_their_columns_in_order_of_the_choices() -> None:
    for sizes in ((3, 2), (900, 700)):  # few combinations, and many more than rows
        codes = [np.random.default_rng(size).integers(0, size, 200) for size in sizes]
        names = ("micro_batch_size", "bucket_size")
        columns = {
            name: Column(choices=tuple(range(1, size + 1)), codes=code)
            for name, size, code in zip(names, sizes, codes, strict=True)
        }
        table = Candidates(base=on_gpus(), columns=columns, count=200)
        rows = [tuple(int(each) + 1 for each in row) for row in zip(*codes, strict=True)]
        kinds, of_row = table.combinations(names)
        assert kinds == sorted(set(rows))
        assert [kinds[each] for each in of_row] == rows
    assert Candidates(base=on_gpus(), columns={}, count=3).combinations(())[1].tolist() == [0, 0, 0]
