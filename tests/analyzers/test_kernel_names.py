"""What kernel names mean: names as profilers write them, from many libraries."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

import analyzers
from analyzers.kernels import COMMUNICATION, COMPUTE_CLASSES, KINDS, kernel, operator

COMMUNICATIONS = [
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", None),
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", None),
    ("ncclSymkDevKernel_AllGather_LLMC(ncclSymkDevArgs)", None),
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)", "ep_dispatch"),
    ("void deep_ep::internode::dispatch<false, 4, false, 7168>(int4*)", "ep_dispatch"),
    ("void deep_ep::internode_ll::combine<false, 7168, 9>(void*)", "ep_combine"),
    ("void deep_ep::internode::cached_notify<false, 8>(int)", "ep_notify"),
    ("void deep_ep::intranode::notify_dispatch<8>(int const*)", "ep_notify"),
    ("void deep_ep::intranode::cached_notify_combine<8>(void**)", "ep_notify"),
    ("void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)", "ep_notify"),
    ("void uccl::internode_ll::dispatch<true, 7168>(void*)", "ep_dispatch"),
    ("void rtp_llm::intranode::combine<__nv_bfloat16, 8>(int4*)", "ep_combine"),
    ("void hybrid_ep::dispatch_kernel<hybrid_ep::config>(params)", "ep_dispatch"),
    ("void hybrid_ep::combine_kernel<hybrid_ep::config>(params)", "ep_combine"),
    ("void hybrid_ep::scan<int>(bool const*)", "ep_notify"),
    ("nvshmemi_transfer_rma_kernel", None),
    ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8<4>(int)", "tp"),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", None),
    ("void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", None),
    ("gloo:all_to_all", None),
    ("gloo:all_reduce", None),
]
COMPUTES = [
    ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "gemm"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_tn>(T1::Params)", "gemm"),
    ("void cutlass::device_kernel<GroupProblemShape<cute::tuple<int>>>(Params)", "grouped_gemm"),
    ("deep_gemm::sm90_fp8_m_grouped_gemm_contiguous", "grouped_gemm"),
    ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>(flash::Flash_fwd_params)", "attention"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x64x128_kernel0", "attention"),
    ("_permute_kernel", "router"),
    ("_sort_chunks_by_map_kernel", "router"),
    ("void transformer_engine::multi_tensor_adam::AdamFunctorMaster<float>", "optimizer"),
    ("void transformer_engine::cast_transpose_general_kernel<8>(int)", "quantise"),
    ("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<T>(Params)", "elementwise"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "elementwise"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::neg::{lambda(float)#1}>", "elementwise"),
    ("void cub::DeviceRadixSortOnesweepKernel<cub::Policy>", "indexing"),
    ("triton_poi_fused_add_mul_3", "elementwise"),
]


@pytest.mark.parametrize(("name", "kind"), COMMUNICATIONS)
def test_communication_is_known_by_what_it_is(name: str, kind: str | None) -> None:
    meaning = kernel(name)
    assert (meaning.compute_class, meaning.kind) == (COMMUNICATION, kind)


@pytest.mark.parametrize(("name", "compute_class"), COMPUTES)
def test_compute_has_a_class_a_fix_can_act_on(name: str, compute_class: str) -> None:
    assert kernel(name).compute_class == compute_class


def test_a_name_nobody_knows_is_said_to_be_unknown() -> None:
    assert not kernel("my_secret_kernel").known


def test_python_functions_are_no_operators_but_native_nodes_are() -> None:
    assert operator("aten::mm").compute_class == "gemm"
    assert operator("MulBackward0").known
    assert not any(operator(n).known for n in ("_AllToAll", "CheckpointFunctionBackward", "c10d::alltoall_base_"))


@pytest.mark.parametrize("table", ["kernels.csv", "operators.csv", "communication.csv"])
def test_every_row_has_a_pattern_that_compiles_a_known_meaning_and_a_source(table: str) -> None:
    with (Path(analyzers.__file__).parent / table).open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            re.compile(row["pattern"])
            assert row["source"]
            assert row.get("class", COMMUNICATION) in (*COMPUTE_CLASSES, COMMUNICATION)
            assert (row.get("kind") or "other") in KINDS
