"""Trains a causal language model from scratch with the Trainer."""

import logging
import sys
from dataclasses import dataclass, field

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments, set_seed

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    config_name: str = field(metadata={"help": "Folder or name of the configuration to start from."})


@dataclass
class DataTrainingArguments:
    block_size: int = field(default=64, metadata={"help": "Length of the training sequences, in tokens."})
    max_train_samples: int = field(default=4096, metadata={"help": "Number of sequences that are made up."})


class SyntheticText(torch.utils.data.Dataset):
    def __init__(self, samples, length, vocabulary):
        self.ids = torch.randint(vocabulary, (samples, length), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    logging.basicConfig(level=logging.INFO, handlers=[logging.StreamHandler(sys.stdout)])
    if training_args.should_log:
        transformers.utils.logging.set_verbosity_info()
    logger.info("process rank %s, device %s", training_args.local_process_index, training_args.device)
    set_seed(training_args.seed)

    config = AutoConfig.from_pretrained(model_args.config_name)
    model = AutoModelForCausalLM.from_config(config)
    data = SyntheticText(data_args.max_train_samples, data_args.block_size, config.vocab_size)
    trainer = Trainer(model=model, args=training_args, train_dataset=data if training_args.do_train else None)
    if training_args.do_train:
        result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", result.metrics)


if __name__ == "__main__":
    main()
