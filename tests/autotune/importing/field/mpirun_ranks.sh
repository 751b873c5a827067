#!/bin/bash
# Open MPI with a wrapper that names the ranks
NP=${NP:-32}
GPN=8
HOSTS=$(printf "%s:$GPN," n01 n02 n03 n04); HOSTS=${HOSTS%,}
export MASTER_ADDR=n01 MASTER_PORT=23456
export NCCL_IB_HCA=mlx5_0,mlx5_1
LAYOUT_ARGS="--tensor-model-parallel-size 4 --pipeline-model-parallel-size 1 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 --sequence-parallel"
MODEL="--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --num-query-groups 8 --group-query-attention \
 --ffn-hidden-size 14336 --num-experts 8 --moe-router-topk 2 --swiglu --disable-bias-linear --normalization RMSNorm \
 --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope --rotary-base 1000000"
mpirun -np ${NP} -H ${HOSTS} --map-by ppr:${GPN}:node --bind-to none \
    --mca btl_tcp_if_include eth0 --mca plm_rsh_args "-p 2222" \
    -x MASTER_ADDR -x MASTER_PORT -x NCCL_IB_HCA -x LD_LIBRARY_PATH -x CUDA_DEVICE_MAX_CONNECTIONS=1 \
    bash -c "
      export RANK=\$OMPI_COMM_WORLD_RANK LOCAL_RANK=\$OMPI_COMM_WORLD_LOCAL_RANK WORLD_SIZE=\$OMPI_COMM_WORLD_SIZE
      exec python -u /opt/Megatron-LM/pretrain_gpt.py $MODEL $LAYOUT_ARGS \
        --micro-batch-size 1 --global-batch-size $((NP*8)) --bf16 --train-iters 1000 --lr 1e-4 \
        --tokenizer-type Llama2Tokenizer --tokenizer-model /tok/llama.model --data-path /data/c4 --vocab-size 32000 \
        --use-distributed-optimizer --save /ckpt/mixtral
    " 2>&1 | tee mpi.log
