"""Does a run of a torch model give its layer table, and is a model without a cut refused?"""

import json
import re

import pytest

from ondie.emu.ndpipe.layers import Builder
from ondie.emu.ndpipe.torch_layers import from_torch
from ondie.emu.units import InputError, plural
from tests.docs.generate import ROOT
from tests.smoke.commands import here, refused

torch = pytest.importorskip("torch", reason="torch is not installed")
nn = torch.nn

FILE = """
from torch import nn

def small():
    body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(body, pool, nn.Linear(8, 5)), (3, 32, 32)

def one():
    return nn.Linear(3, 3)

def wrong():
    raise ValueError("no weights")

def shape():
    return nn.Linear(3, 3), 7

other = 3
"""


def test_convolution_dense_and_attention_as_by_our_table():
    """A convolution in groups with its normalization, and an encoder layer of a transformer."""

    class Tokens(nn.Module):
        def forward(self, image):
            return image.flatten(2).transpose(1, 2)

    conv = nn.Sequential(nn.Conv2d(4, 16, 3, 2, 1, groups=2, bias=False), nn.BatchNorm2d(16))
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(conv, Tokens(), encoder, nn.Linear(16, 10))
    net = from_torch(model, (4, 8, 8), "Small")
    build = Builder("small", "Small", (4, 8, 8))
    shape = build.conv((4, 8, 8), "conv", 16, 3, stride=2, pad=1, groups=2)
    build.end_stage("0", shape)
    build.end_stage("1", shape)
    build.normalize(16, 16, "norm1")
    build.dense(16, "qkv", 48, 16)
    build.attention(16, 16, "attention")
    build.dense(16, "projection", 16, 16)
    build.normalize(16, 16, "norm2")
    build.dense(16, "mlp1", 32, 16)
    build.dense(32, "mlp2", 16, 16)
    build.end_stage("2", 256)
    build.end_stage("3", 16 * build.dense(16, "head", 10, 16))
    assert net.stages == build.network().stages
    assert model.training and all(value.requires_grad for value in model.parameters())


class Bypass(nn.Module):
    """The third child takes the output of the first one, too."""

    def __init__(self, calls: str = "") -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))
        self.calls = calls

    def forward(self, given):
        start = self.first(given)
        match self.calls:
            case "twice":
                return self.third(self.second(self.second(start)))
            case "never":
                return self.third(start)
            case "no gradient":
                with torch.no_grad():
                    return self.third(self.second(start.detach()) + start.detach())
            case "outside":
                return self.third(self.second(start) @ start.transpose(-1, -2))
        return self.third(self.second(start) + start)


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ("", "data bypasses second, so no cut is possible after it"),
        ("no gradient", "data bypasses second, so no cut is possible after it"),
        ("twice", "second runs more than once"),
        ("never", "child modules that never run: second"),
        ("outside", "64 of 256 multiply-accumulates are outside"),
    ],
)
def test_a_model_without_a_cut_is_refused(calls, text):
    with pytest.raises(InputError, match=f"Own: {text}"):
        from_torch(Bypass(calls), (1, 4, 4), "Own")


@pytest.mark.parametrize(
    ("output", "text"),
    [(lambda x: {"out": x}, "returns dict; must return a tensor"),
     (lambda x: x.nothing, "does not run .*no attribute 'nothing'")],
)  # fmt: skip
def test_what_a_model_does_is_refused_in_one_line(output, text):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

        def forward(self, image):
            return output(self.b(self.a(image)))

    with pytest.raises(InputError, match=f"Own: {text}"):
        from_torch(Own(), (3, 4, 4), "Own")


def test_other_models_are_refused():
    with pytest.raises(InputError, match="must be a torch.nn.Module"):
        from_torch(3, (3, 4, 4), "Own")
    with pytest.raises(InputError, match="has 0 child modules"):
        from_torch(nn.Linear(3, 3), (3, 4, 4), "Own")
    with pytest.raises(InputError, match=r"Own: does not run with an input of \(3, 4, 4\)"):
        from_torch(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), (3, 4, 4), "Own")
    lstm = nn.Sequential(nn.Flatten(2), nn.LSTM(16, 3))
    with pytest.raises(InputError, match="1 returns tuple; must return a tensor"):
        from_torch(lstm, (3, 4, 4), "Own")
    assert torch.is_grad_enabled()


def test_the_example_of_the_page(capsys, tmp_path):
    """The page says where its model is cut and what crosses there."""
    page = (ROOT / "docs" / "ndpipe.md").read_text("utf-8")
    (text,) = re.findall(r"```python\n# models.py\n(.*?)```", page, re.DOTALL)
    (tmp_path / "models.py").write_text(text)
    words = ("--network", f"{tmp_path / 'models.py'}:small", "--json", "-", "--quiet")
    done = here(capsys, "validate", "ndpipe", *words)
    assert done.code == 0, done.err
    rows = {row["name"]: row["predicted"] for row in json.loads(done.out)}
    assert rows["small: traffic of a cut at 2"] == 32 / 12288
    cuts = [name.split(", limited")[0] for name in rows if "cut at" in name and "store" in name]
    assert cuts == [f"small, {plural(count, 'store')}: cut at 2" for count in (1, 4, 20)]
    assert "small: number of stores above which the throughput is constant" in rows
    macs = 32 * 32 * 16 * 27, 16 * 16 * 32 * 16 * 9
    assert rows["small: computation up to 1"] == pytest.approx(sum(macs) / 1e9)


def test_as_a_command(capsys, tmp_path):
    file = tmp_path / "models.py"
    file.write_text(FILE)
    done = here(capsys, "validate", "ndpipe", "--network", f"{file}:small")
    assert done.code == 0 and "small: traffic of a cut at 1" in done.out
    assert "small, 20 stores: cut at" in done.out
    for name, text in {
        "one": "one: has 0 child modules",
        "wrong": "ValueError: no weights",
        "shape": "input shape 7: must be (channels, height, width)",
        "other": "has no function 'other'",
        "none": "has no function 'none'",
    }.items():
        refused(here(capsys, "validate", "ndpipe", "--network", f"{file}:{name}"), text)
    refused(here(capsys, "validate", "ndpipe", "--network", "resnet50"), "must be FILE.py:FUNCTION")
    refused(
        here(capsys, "validate", "zero", "--network", f"{file}:small"),
        "--network can be used only with ondie validate ndpipe",
    )
