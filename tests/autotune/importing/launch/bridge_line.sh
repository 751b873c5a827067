#!/bin/bash
#SBATCH -N 2
export HF_TOKEN=hf_secret
NEMO=/opt/Megatron-Bridge
srun --ntasks-per-node=8 --container-image=nvcr.io/nvidia/nemo:25.11 \
  python $NEMO/scripts/training/run_recipe.py --recipe qwen3_30b_a3b_pretrain_config \
    model.tensor_model_parallel_size=2 model.pipeline_model_parallel_size=1 model.expert_model_parallel_size=8 \
    model.sequence_parallel=true "model.recompute_modules=[core_attn,moe_act]" model.recompute_granularity=selective \
    train.global_batch_size=512 train.micro_batch_size=2 mixed_precision=bf16_with_mxfp8_mixed \
    comm_overlap.tp_comm_overlap=false model.moe_token_dispatcher_type=alltoall dataset.seq_length=8192 \
    checkpoint.save=/ckpt/run logger.log_interval=1 'dataset.blend=[[/data/a],null]'
