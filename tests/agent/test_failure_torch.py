"""What is shown of tensors and modules of PyTorch at a failure."""

from __future__ import annotations

from typing import Any

import pytest

from tests.failed_lines import failed

pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.thorough

HEAD = "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
CASES = {
    "product": (
        "x, w = torch.zeros(32, 784), torch.ones(512, 10)\nx @ w",
        {"x": "Tensor 32×784 float32, all 0", "w": "Tensor 512×10 float32, all 1"},
    ),
    "layer": (
        "fc = nn.Linear(512, 10)\nx = torch.zeros(32, 784)\nfc(x)",
        {"fc": "Linear: weight 10×512, bias 10", "x": "Tensor 32×784"},
    ),
    "in a sequence": (
        "net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(10, 10))\nx = torch.zeros(32, 784)\nnet(x)",
        {"net": "Sequential: 0 Linear(weight 512×784, bias 512), 1 ReLU(", "input": "Tensor 32×512 float32"},
    ),
    "parameter in a module": (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.proj = nn.Parameter(torch.zeros(4, 4))\n        self.register_buffer('mean', torch.ones(3))\n"
        "    def forward(self, x):\n        return (x - self.mean) @ self.proj\n"
        "net = Net()\nx = torch.zeros(2, 3)\nnet(x)",
        {"self.mean": "Tensor 3 float32: [1.0, 1.0, 1.0]", "self.proj": "Parameter 4×4 float32, all 0", "x": "2×3"},
    ),
    "device": (
        "x = torch.zeros(4, 3)\ny = x.to('meta')\nif x.device != y.device: raise RuntimeError('device')",
        {"x": "Tensor 4×3 float32, all 0", "y": "Tensor 4×3 float32 on meta"},
    ),
    "dtype": (
        "loss = nn.CrossEntropyLoss()\nlogits = torch.zeros(4, 3)\nlabels = torch.zeros(4, 1, dtype=torch.long)\n"
        "loss(logits, labels)",
        {"logits": "Tensor 4×3 float32", "labels": "Tensor 4×1 int64"},
    ),
    "label out of range": (
        "logits, labels = torch.zeros(8, 3), torch.arange(8)\nnn.functional.cross_entropy(logits, labels)",
        {"labels": "Tensor 8 int64, 0 to 7"},
    ),
    "index of an embedding": (
        "emb = nn.Embedding(10, 4)\nids = torch.full((3, 5), 12)\nemb(ids)",
        {"emb": "Embedding: weight 10×4", "ids": "Tensor 3×5 int64, all 12"},
    ),
    "NaN in a loss": (
        "loss = torch.full((9,), 2.0); loss[3] = float('nan')\nif loss.isnan().any(): raise ValueError('loss is NaN')",
        {"loss": "Tensor 9 float32, all 2, 1 NaN"},
    ),
    "no gradient": ("x = torch.ones(3)\nx.sum().backward()", {"x": "Tensor 3 float32: [1.0, 1.0, 1.0]"}),
    "stack": (
        "parts = [torch.zeros(3, 8), torch.zeros(3, 9)]\ntorch.stack(parts)",
        {"parts": "list of 2: [Tensor 3×8 float32, Tensor 3×9 float32]"},
    ),
    "view": ("x = torch.zeros(4, 6)\nn = 5\nx.view(n, -1)", {"x": "Tensor 4×6", "n": "5"}),
    "convolution": (
        "conv = nn.Conv2d(3, 8, 3)\nimages = torch.zeros(2, 1, 28, 28)\nconv(images)",
        {"conv": "Conv2d: weight 8×3×3×3, bias 8", "images": "Tensor 2×1×28×28"},
    ),
    "state of another model": (
        "net = nn.Linear(4, 2)\nstate = nn.Linear(5, 2).state_dict()\nnet.load_state_dict(state)",
        {"state": "OrderedDict of 2: {'weight': Tensor 2×5 float32", "net": "Linear: weight 2×4, bias 2"},
    ),
    "half precision": ("x = torch.ones(20, dtype=torch.bfloat16)\nx.reshape(3)", {"x": "Tensor 20 bfloat16, all 1"}),
    "sparse": ("s = torch.eye(3).to_sparse()\ns.view(9)", {"s": "Tensor 3×3 float32"}),
    "zero dimensions": ("loss = torch.tensor(3.5)\nlen(loss)", {"loss": "Tensor of one number float32: 3.5"}),
    "worker of a loader": (
        "class Data(torch.utils.data.Dataset):\n    def __len__(self): return 4\n"
        "    def __getitem__(self, i):\n        return torch.zeros(i + 1)\n"
        "loader = torch.utils.data.DataLoader(Data(), batch_size=2)\nfor batch in loader:\n    pass",
        {"loader": "DataLoader: "},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("code", "shown"), [pytest.param(*case, id=name) for name, case in CASES.items()])
def test_failing_line_shows_its_tensors(code: str, shown: dict[str, str]) -> None:
    named = failed(HEAD + code).named()
    assert {name: text for name, text in shown.items() if text not in named.get(name, "(absent)")} == {}, named


def test_subclass_of_tensors_is_not_asked() -> None:
    import torch

    called: list[Any] = []

    class Own(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    value = torch.zeros(3).as_subclass(Own)
    called.clear()
    found = failed("def f(value):\n    return [value, 1 / 0]\nf(value)", value=value)
    assert not called and found.shown()["value"].startswith("Own")


def test_values_on_another_device_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    value = torch.zeros(3, 4, device="meta")
    for name in ("detach", "cpu", "numpy", "float", "item", "tolist", "min", "isnan", "__repr__"):
        monkeypatch.setattr(torch.Tensor, name, lambda *args: pytest.fail("the device was asked"))
    assert failed("1 / 0 if value is not None else 0", value=value).shown()["value"] == "Tensor 3×4 float32 on meta"
