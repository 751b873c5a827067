#!/bin/bash
# writes a job and hands it to sbatch on standard input
mbs=1
sbatch -J "mix_mbs${mbs}" <<EOT
#!/bin/bash
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
export MASTER_ADDR=\$(scontrol show hostnames \$SLURM_JOB_NODELIST | head -n 1)
srun bash -c 'torchrun --nnodes=\$SLURM_NNODES --nproc_per_node=8 --node_rank=\$SLURM_PROCID --master_addr=\$MASTER_ADDR --master_port=6000 \
  pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 8 --num-experts 8 --seq-length 128 --max-position-embeddings 128 \
  --micro-batch-size ${mbs} --global-batch-size '\$((SLURM_NNODES * 64))' --bf16 --vocab-size 1000 --lr 1e-4 --train-iters 10 --save /ck/\$SLURM_JOB_ID'
EOT
