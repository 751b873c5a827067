"""Checks the classes of kernel names as profilers write them, from many libraries."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from analyzers.kernel_classes import COMMUNICATION, COMPUTE_CLASSES, PRECISIONS
from analyzers.names import tables
from analyzers.names.kernel_name import own_name
from analyzers.names.kernels import kernel, operator
from analyzers.one_rank.communication import MEANINGS
from tests.rows import filled

# written from what the libraries' sources say, not from the patterns; `trap` names the class it must not become
CORPUS = Path(__file__).with_name("kernel_names.csv")


def _corpus() -> list[dict[str, str]]:
    with CORPUS.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("compute_class", sorted({row["class"] for row in _corpus()}))
def test_names_of_a_class_mean_what_their_sources_say(compute_class: str) -> None:
    wrong = []
    for row in _corpus():
        if row["class"] == compute_class:
            meaning = kernel(row["name"])
            found = meaning.compute_class, meaning.kind or "", meaning.precision or ""
            if found != (row["class"], row["kind"], row["precision"]):
                wrong.append((row["name"], found))
    assert not wrong


def test_no_name_that_only_sounds_like_communication_becomes_it() -> None:
    traps = [row["name"] for row in _corpus() if row["trap"]]
    assert len(traps) >= 60
    assert [name for name in traps if kernel(name).compute_class == COMMUNICATION] == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>) [clone .kd]", "ncclDevKernel_Generic_4"),
        ("void at::native::(anonymous namespace)::f<(int)4, g::h>(T1 *)", "at::native::anonymous::f"),
        ("std::enable_if<(((8)>(0)))&&a::exists, void>::type b::norm<c::d, 8>(c::d*, long)", "b::norm"),
        ("_ZN7deep_ep9intranode8dispatchILi8ELi768ELi8192EEEvP4int4", "deep_ep::intranode::dispatch"),
        ("_ZN2at6native12_GLOBAL__N_16kernelINS1_1TEEEvT_", "at::native::anonymous::kernel"),
        ("_Z22ncclDevKernel_SendRecv24ncclDevKernelArgsStorageILm4096EE", "ncclDevKernel_SendRecv"),
        ("_ZN4bad", "bad"),
        ("_Z99cut", "cut"),
        ("", ""),
        ("nvjet_tst_64x8_64x16_1x4_h_bz_TNT", "nvjet_tst_64x8_64x16_1x4_h_bz_TNT"),
    ],
)
def test_a_kernels_own_name_is_the_part_before_its_arguments(text: str, name: str) -> None:
    assert own_name(text) == name


def test_a_name_nobody_knows_is_said_to_be_unknown() -> None:
    assert not kernel("my_secret_kernel").known


def test_python_functions_are_no_operators_but_native_nodes_are() -> None:
    assert operator("aten::mm").compute_class == "gemm"
    assert operator("MulBackward0").known
    assert not any(operator(n).known for n in ("_AllToAll", "CheckpointFunctionBackward", "c10d::alltoall_base_"))


@pytest.mark.parametrize(
    "table", ["kernels.csv", "precision.csv", "operators.csv", "communication.csv", "contexts.csv"]
)
def test_every_row_has_a_pattern_that_compiles_a_known_meaning_and_a_source(table: str) -> None:
    for row in filled(tables.rows(table)):
        re.compile(row["pattern"])
        assert row["source"]
        assert row.get("class", COMMUNICATION) in (*COMPUTE_CLASSES, COMMUNICATION)
        assert (row.get("kind") or "other") in MEANINGS
        assert row.get("precision", "bf16") in PRECISIONS
        assert row.get("becomes", "other") in COMPUTE_CLASSES
        assert row.get("in", "name") in ("name", "text")
