"""A small convolutional network on made-up pictures of CIFAR-10's size, under DeepSpeed."""

import argparse

import deepspeed
import deepspeed.ops
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(2 * width * 64, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def add_argument():
    parser = argparse.ArgumentParser(description="CIFAR")
    parser.add_argument("-e", "--epochs", default=3, type=int, help="number of total epochs")
    parser.add_argument("--width", default=16, type=int, help="channels of the first convolution")
    parser.add_argument("--samples", default=2048, type=int, help="made-up pictures")
    parser.add_argument("--log-interval", default=2, type=int, help="steps between two lines of the log")
    parser.add_argument("--local_rank", type=int, default=-1, help="local rank passed from the distributed launcher")
    return deepspeed.add_config_arguments(parser).parse_args()


def main(args):
    if not torch.cuda.is_available():
        deepspeed.ops.__compatible_ops__ = {}  # no C++ is compiled for the CPU
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(42)
    pictures = torch.randn(args.samples, 3, 32, 32)
    labels = torch.randint(10, (args.samples,))
    model = Net(args.width)
    model_engine, _, trainloader, _ = deepspeed.initialize(
        args=args,
        model=model,
        model_parameters=model.parameters(),
        training_data=torch.utils.data.TensorDataset(pictures, labels),
    )
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        for x, y in trainloader:
            loss = criterion(model_engine(x), y)
            model_engine.backward(loss)
            last = model_engine.is_gradient_accumulation_boundary()
            model_engine.step()
            step = model_engine.global_steps
            if last and model_engine.global_rank == 0 and step % args.log_interval == 0:
                print(f"[{epoch + 1}, {step:5d}] loss: {loss.item():.3f}", flush=True)
    if model_engine.global_rank == 0:
        print("Finished Training")


if __name__ == "__main__":
    main(add_argument())
