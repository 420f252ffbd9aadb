"""Tells two kinds of made-up sentences apart, with Accelerate and a loop of its own."""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, vocabulary=4096, width=256, length=48):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True),
            2,
            enable_nested_tensor=False,
        )
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens) + self.position).mean(1))


def get_dataloader(accelerator, batch_size, samples):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4096, (samples, 48), generator=generator)
    labels = (tokens[:, 0] > tokens[:, 1]).long()
    accelerator.print(f"{samples} sentences")
    return DataLoader(TensorDataset(tokens, labels), shuffle=True, batch_size=batch_size)


def training_function(args):
    accelerator = Accelerator(
        cpu=args.cpu, mixed_precision=args.mixed_precision, gradient_accumulation_steps=args.gradient_accumulation_steps
    )
    torch.manual_seed(args.seed)
    loader = get_dataloader(accelerator, args.per_device_batch, args.samples)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    done = 0
    for epoch in range(args.num_epochs):
        model.train()
        for tokens, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(tokens), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                done += 1
                accelerator.print(f"epoch {epoch} | step {done} | loss {loss.item():.4f}", flush=True)
    accelerator.end_training()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mixed_precision", default=None, choices=["no", "fp16", "bf16"])
    parser.add_argument("--cpu", action="store_true", help="train on the CPU")
    parser.add_argument("--per-device-batch", type=int, default=8, help="sentences per process and pass")
    parser.add_argument("--gradient-accumulation-steps", type=int, default=1, help="passes per update of the weights")
    parser.add_argument("--num-epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--seed", type=int, default=42)
    training_function(parser.parse_args())


if __name__ == "__main__":
    main()
