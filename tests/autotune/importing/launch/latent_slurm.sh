#!/bin/bash
#SBATCH --job-name=latent
#SBATCH --nodes=32
#SBATCH --ntasks-per-node=8   # one task a GPU
#SBATCH --gres=gpu:h100:8
#SBATCH --time=04:00:00

export NCCL_IB_TIMEOUT=19
export TORCH_NCCL_AVOID_RECORD_STREAMS=1
export NVTE_ALLOW_NONDETERMINISTIC_ALGO=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export NVTE_FWD_LAYERNORM_SM_MARGIN=16
export CUDA_DEVICE_MAX_CONNECTIONS=1

WORKSPACE=/lustre/team/latent
OUTPUT=${WORKSPACE}/out/${SLURM_JOB_ID}
PR=${PR:-fp8}
PP=8
LAYOUT="Et*3|(tt|)*29m|L"

case $PR in
  bf16) PRECISION=() ;;
  fp8)
    PRECISION=(--fp8-recipe blockwise --fp8-format e4m3 --fp8-param-gather)
    PRECISION+=(--use-precision-aware-optimizer --main-grads-dtype fp32 --main-params-dtype fp32
                --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 --moe-router-padding-for-fp8)
    ;;
esac

OPTIONS=" \
    --distributed-timeout-minutes 60 \
    --tensor-model-parallel-size 1 \
    --pipeline-model-parallel-size ${PP} \
    --expert-model-parallel-size 32 \
    --expert-tensor-parallel-size 1 \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --use-mcore-models --sequence-parallel --use-flash-attn \
    --disable-bias-linear --micro-batch-size 1 --global-batch-size 8192 \
    --train-samples 268554688 --lr 3.9e-6 --min-lr 3.9e-7 --lr-decay-style cosine --adam-beta2 0.95 \
    --transformer-impl transformer_engine --seq-length 4096 \
    --data-cache-path ${WORKSPACE}/cache --tokenizer-type HuggingFaceTokenizer \
    --tokenizer-model deepseek-ai/DeepSeek-V3 --data-path ${WORKSPACE}/data/text_document \
    --vocab-size 129280 --make-vocab-size-divisible-by 3232 --split 99,1,0 --no-mmap-bin-files \
    --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --kv-channels 128 \
    --max-position-embeddings 4096 --position-embedding-type rope --rotary-base 10000 --rotary-percent 1.0 \
    --rotary-scaling-factor 40 --mscale 1.0 --mscale-all-dim 1.0 --no-rope-fusion \
    --normalization RMSNorm --norm-epsilon 1e-6 --swiglu --untie-embeddings-and-output-weights \
    --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 \
    --v-head-dim 128 --qk-layernorm --attention-dropout 0.0 --hidden-dropout 0.0 \
    --num-experts 256 --moe-layer-freq \"([0]*3+[1]*58)\" --moe-ffn-hidden-size 2048 \
    --moe-shared-expert-intermediate-size 2048 --moe-router-load-balancing-type seq_aux_loss \
    --moe-router-topk 8 --moe-router-group-topk 4 --moe-router-num-groups 8 --moe-router-pre-softmax \
    --moe-router-topk-scaling-factor 2.5 --moe-router-score-function sigmoid --moe-router-enable-expert-bias \
    --moe-router-bias-update-rate 1e-3 --moe-router-dtype fp32 --moe-permute-fusion --moe-aux-loss-coeff 1e-4 \
    --moe-token-dispatcher-type flex --moe-enable-deepep --moe-deepep-num-sms 24 --moe-grouped-gemm \
    --mtp-num-layers 1 --mtp-loss-scaling-factor 0.1 --init-method-std 0.02 --bf16 \
    --recompute-granularity selective --recompute-modules mla_up_proj layernorm moe_act \
    --cross-entropy-loss-fusion --cross-entropy-fusion-impl native --manual-gc --manual-gc-interval 10 \
    --save ${OUTPUT}/checkpoints --save-interval 500 --tensorboard-dir ${OUTPUT}/tb --log-throughput \
    --attention-backend fused --no-bias-swiglu-fusion --clip-grad 1.0 --weight-decay 0.1"

RUN="python -u ${WORKSPACE}/Megatron-LM/pretrain_gpt.py ${OPTIONS} --pipeline-model-parallel-layout \"${LAYOUT}\""

srun --mpi=pmix -l \
    --container-image="nvcr.io/nvidia/pytorch:25.06-py3" \
    --container-mounts "/lustre:/lustre" \
    bash -c "export NCCL_SOCKET_IFNAME=eth0; ${RUN} ${PRECISION[*]}"
