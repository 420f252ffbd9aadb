"""Trains a small language model on random text with DistributedDataParallel."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

VOCAB = 1024
LENGTH = 32


class RandomText(Dataset):
    def __init__(self, samples):
        generator = torch.Generator().manual_seed(1234)
        self.tokens = torch.randint(VOCAB, (samples, LENGTH + 1), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index, :-1], self.tokens[index, 1:]


class LanguageModel(nn.Module):
    def __init__(self, width=128, depth=2, gradient_checkpointing=False):
        super().__init__()
        self.gradient_checkpointing = gradient_checkpointing
        self.embedding = nn.Embedding(VOCAB, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True) for _ in range(depth)
        )
        self.out = nn.Linear(width, VOCAB)

    def forward(self, tokens):
        x = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for block in self.blocks:
            x = checkpoint(block, x, mask, use_reentrant=False) if self.gradient_checkpointing else block(x, mask)
        return self.out(x)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=2, help="samples per process and forward pass")
    parser.add_argument("--grad-accum", type=int, default=1, help="forward passes per optimizer step")
    parser.add_argument("--gradient-checkpointing", action="store_true", help="recompute activations in the backward")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--samples", type=int, default=4096, help="size of the made-up data set")
    parser.add_argument("--save-dir", default="checkpoints", help="where each epoch's weights go")
    return parser.parse_args()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)

    data = RandomText(args.samples)
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(LanguageModel(gradient_checkpointing=args.gradient_checkpointing))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    if rank == 0:
        os.makedirs(args.save_dir, exist_ok=True)
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, {len(data)} samples")

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        bar = tqdm(total=len(loader) // args.grad_accum, desc=f"epoch {epoch}", disable=rank != 0)
        for index, (tokens, targets) in enumerate(loader, 1):
            loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            (loss / args.grad_accum).backward()
            if index % args.grad_accum == 0:
                optimizer.step()
                optimizer.zero_grad()
                bar.set_postfix(loss=f"{loss.item():.3f}")
                bar.update()
        bar.close()
        if rank == 0:
            torch.save(model.module.state_dict(), os.path.join(args.save_dir, f"epoch{epoch}.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
