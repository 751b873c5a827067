"""Kernel names of real traces, from which names are drawn at random."""

from __future__ import annotations

from typing import NamedTuple

GEMMS = (
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
    "nvjet_hsh_256x128_64x4_2x1_v_bz_TNN",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x256_64x3_tn_align8>(Params)",
)
ATTENTION = (
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false>>(flash::Flash_fwd_params)",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6_128x128x128_4x1x1_kernel0_0",
)
ATTENTION_BACKWARD = (
    "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 64, 8>>(Params)",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_3_64x128x128_4x1x1_kernel0_0",
)
GROUPED = (
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<"
    "cute::tuple<int, int, int>>, cutlass::gemm::collective::CollectiveMma<>>>(Params)",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 7168u, 8u, 128u, 128u, (deep_gemm::GemmType)1>(float*)",
)
NORM = "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<Kernel_traits<bf16, bf16>>(Params)"
ROUTER = "void transformer_engine::fused_router::fused_topk_with_score_function_forward_kernel<float>(float const*)"
PERMUTE = "void transformer_engine::permute_kernel<__nv_bfloat16, false>(__nv_bfloat16 const*, int const*)"
UNPERMUTE = "void transformer_engine::unpermute_kernel<__nv_bfloat16, false>(__nv_bfloat16 const*, int const*)"
ACTIVATION = "void transformer_engine::swiglu_kernel<__nv_bfloat16, float>(__nv_bfloat16 const*)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)"
OPTIMIZER = "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>(long, int volatile*)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
TO_HOST, FROM_HOST = "Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"

Arguments = tuple[tuple[str, object], ...]


def nccl(collective: str, group: str, size: int) -> Arguments:
    """Returns the arguments of a collective as torch records them."""
    return (("Collective name", collective), ("Process Group Description", group), ("Group size", size))


class Library(NamedTuple):
    """A library that moves tokens between experts."""

    dispatch: str
    combine: str
    arguments: Arguments = ()
    ranges: bool = False  # `dispatch` and `combine` ranges around the launches
    syncs: bool = False  # the host reads the experts' token counts before it launches the dispatch
    notify: str = ""  # the kernel that counts them; the host polls memory for the result, without a call


LIBRARIES = (
    Library(SEND_RECV, SEND_RECV, nccl("all_to_allv", "EXPERT_MODEL_PARALLEL_GROUP", 8), syncs=True),
    Library(SEND_RECV, SEND_RECV, ranges=True),
    Library(SEND_RECV, SEND_RECV),
    Library(
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*, float*)",
        notify="void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int const*, int*, int)",
    ),
    Library(
        "void deep_ep::internode::dispatch<false, 4, false, 8192, 8>(int4*, float*)",
        "void deep_ep::internode::combine<false, 4, __nv_bfloat16, 8, 8>(int4*, float*)",
    ),
    Library(
        "void hybrid_ep::dispatch_kernel<__nv_bfloat16, 4, 8>(hybrid_ep::dispatch_kernel_param_t<__nv_bfloat16>)",
        "void hybrid_ep::combine_kernel<4, 8>(hybrid_ep::combine_kernel_param_t)",
    ),
)
