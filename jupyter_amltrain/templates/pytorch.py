# %%aml_submit --out accuracy
"""Train a small neural network with PyTorch on generated points of two interleaved spirals."""

import os

import mlflow
import torch
from torch import nn

# Try other values without an edit: --param lr=0.003
epochs = 60
lr = 0.01
batch_size = 128
seed = 0

torch.manual_seed(seed)
device = "cuda" if torch.cuda.is_available() else "cpu"
mlflow.log_params({"epochs": epochs, "lr": lr, "batch_size": batch_size, "seed": seed, "device": device})


def spirals(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points of two spirals, and the number of the spiral of each."""
    angle = 3 * torch.pi * torch.rand(count).sqrt()
    label = torch.randint(0, 2, (count,))
    turned = angle + label * torch.pi
    points = torch.stack([angle * turned.cos(), angle * turned.sin()], dim=1) / 10
    return points + 0.02 * torch.randn(count, 2), label


train_x, train_y = (part.to(device) for part in spirals(4096))
test_x, test_y = (part.to(device) for part in spirals(1024))

model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=lr)
loss_of = nn.CrossEntropyLoss()

accuracy = 0.0
for epoch in range(epochs):
    model.train()
    total = 0.0
    for batch in torch.randperm(len(train_x), device=device).split(batch_size):
        optimizer.zero_grad()
        loss = loss_of(model(train_x[batch]), train_y[batch])
        loss.backward()
        optimizer.step()
        total += float(loss.detach()) * len(batch)
    model.eval()
    with torch.no_grad():
        accuracy = float((model(test_x).argmax(dim=1) == test_y).float().mean())
    mlflow.log_metrics({"loss": total / len(train_x), "accuracy": accuracy}, step=epoch)
print(f"accuracy on {len(test_x)} new points: {accuracy:.3f}")

torch.save(model.state_dict(), os.path.join(os.environ["AML_OUTPUT_DIR"], "model.pt"))
