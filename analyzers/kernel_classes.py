"""The closed sets of names for the parts of a step: classes of device kernels, and kinds of communication."""

COMMUNICATION = "communication"
OTHER = "other"
RECOMPUTE = "recompute"
GEMM = "gemm"
GROUPED_GEMM = "grouped_gemm"
# time in which two classes run at once counts for the first of them: rarer and longer kernels come first
COMPUTE_CLASSES = (
    RECOMPUTE,
    "attention",
    GROUPED_GEMM,
    GEMM,
    "convolution",
    "optimizer",
    "router",
    "quantise",
    "embedding",
    "elementwise",
    "indexing",
    OTHER,
)
PRODUCTS = (GEMM, GROUPED_GEMM)  # the classes whose kernels have a precision
ARITHMETIC = (*PRODUCTS, "attention", "convolution")  # the classes whose work is counted as the model's FLOPs
UNKNOWN_PRECISION = "unknown"
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "int8", "fp8", "mxfp8", "mxfp4", "nvfp4", UNKNOWN_PRECISION)
# bound by memory traffic, not by arithmetic: fusing them into other kernels could save their time
MEMORY_BOUND = ("elementwise", "indexing", "quantise", "router")
# kinds of communication; time in which two are exposed at once counts for the first
PIPELINE = "pp"
KINDS = ("ep_dispatch", "ep_combine", "ep_notify", "tp", "cp", "pp", "dp", "all_to_all", "other")
