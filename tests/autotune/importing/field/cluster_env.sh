# sourced
NNODES=2
GPUS_PER_NODE=8
TP_SIZE=1
PP_SIZE=1
EP_SIZE=4
MBS=1
CUDA_DEVICE_MAX_CONNECTIONS=1
NCCL_IB_SL=1
NVTE_FLASH_ATTN=1
HF_TOKEN=not-a-real-one
MEGATRON_PATH=/opt/megatron-lm
DATA_PATH="0.7 /data/web_text_document 0.3 /data/code_text_document"
OUT=/results/qwen3
