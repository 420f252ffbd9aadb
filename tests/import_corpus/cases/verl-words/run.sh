set -x
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen3-8B \
  data.train_batch_size=256 data.max_prompt_length=512 data.max_response_length=3584 \
  actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
  actor_rollout_ref.rollout.n=2 actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
  trainer.nnodes=2 trainer.n_gpus_per_node=4
