"""Names of operations in simulated traces: kernel names as in traces of Megatron-Core, and process groups."""

from __future__ import annotations

from trainer.engines.simulated.ops import Stream

_NCCL = "ncclDevKernel_{}(ncclDevKernelArgsStorage<4096ul>)"

KERNELS = {
    "norm": "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<float>",
    "norm_backward": "void transformer_engine::normalization::rmsnorm_bwd_tuned_kernel<float>",
    "gemm": "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_NNT",
    "rope": "void transformer_engine::fused_rope_forward_kernel<__nv_bfloat16>",
    "attention_forward": "cudnn_generated_fort_native_sdpa_flash_fprop_wgmma_f16_knob_7_64x128x128",
    "attention_backward": "cudnn_generated_fort_native_sdpa_flash_bprop_wgmma_f16_knob_7_64x128x128",
    "residual": "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>",
    "router": "void transformer_engine::fused_topk_with_score_function_forward_kernel<float>",
    "preprocess": "void transformer_engine::fused_indices_to_multihot_kernel<int>",
    "permute": "_permute_kernel",
    "grouped_gemm": "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<GroupProblemShape>>",
    "activation": "void transformer_engine::swiglu_kernel<__nv_bfloat16>",
    "activation_backward": "void transformer_engine::dswiglu_kernel<__nv_bfloat16>",
    "quantize": "void transformer_engine::quantize_mxfp8_kernel<__nv_bfloat16, __nv_fp8_e4m3>",
    "scan": "_chunk_scan_fwd_kernel",
    "embedding": "void at::native::indexSelectLargeIndex<c10::BFloat16, long>",
    "loss": "void cross_entropy_kernel<float>",
    "adam": "void multi_tensor_apply_kernel<transformer_engine::multi_tensor_adam::AdamFunctorMaster>",
    "copy_out": "Memcpy DtoH (Device -> Pinned)",
    "copy_back": "Memcpy HtoD (Pinned -> Device)",
    "AllGather": _NCCL.format("AllGather_RING_LL"),
    "ReduceScatter": _NCCL.format("ReduceScatter_Sum_bf16_RING_LL"),
    "AllReduce": _NCCL.format("AllReduce_Sum_f32_RING_LL"),
    "SendRecv": _NCCL.format("SendRecv"),
    "alltoall_dispatch": _NCCL.format("SendRecv"),
    "alltoall_combine": _NCCL.format("SendRecv"),
    "allgather_dispatch": _NCCL.format("AllGather_RING_LL"),
    "allgather_combine": _NCCL.format("ReduceScatter_Sum_bf16_RING_LL"),
    "allgather_notify": _NCCL.format("AllGather_RING_LL"),
    "deepep_notify": "void deep_ep::internode::notify_dispatch<false>",
    "deepep_dispatch": "void deep_ep::internode::dispatch<false>",
    "deepep_combine": "void deep_ep::internode::combine<__nv_bfloat16>",
    "hybridep_notify": "void hybrid_ep::scan<int>",
    "hybridep_dispatch": "void hybrid_ep::dispatch_kernel<unsigned short>",
    "hybridep_combine": "void hybrid_ep::combine_kernel<unsigned short>",
    "ncclep_notify": "nccl_ep_jit_scan",
    "ncclep_dispatch": "nccl_ep_jit_dispatch",
    "ncclep_combine": "nccl_ep_jit_combine",
}
GROUPS = {
    Stream.EP: "EXPERT_MODEL_PARALLEL_GROUP",
    Stream.TP: "TENSOR_MODEL_PARALLEL_GROUP",
    Stream.CP: "CONTEXT_PARALLEL_GROUP",
    Stream.DP: "DATA_PARALLEL_GROUP_WITH_CP",
    Stream.PP: "PIPELINE_MODEL_PARALLEL_GROUP",
    Stream.NORM: "MODEL_PARALLEL_GROUP",
}
