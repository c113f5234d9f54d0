"""A module as users of Lightning write them, for the tests."""

import torch
import torch.nn.functional as F
from pytorch_lightning import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, TensorDataset

import pollux_tune as pt
from pollux_tune.lightning import ElasticTrainer


class Points(LightningDataModule):
    def setup(self, stage):
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(1200, 16, generator=generator)
        classes = (inputs @ torch.randn(16, 4, generator=generator)).argmax(1)
        self.data = TensorDataset(inputs[:1000], classes[:1000]), TensorDataset(inputs[1000:], classes[1000:])

    def train_dataloader(self):
        return DataLoader(self.data[0], batch_size=32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.data[1], batch_size=64)


class Net(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
        )

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log_dict({"accuracy": (logits.argmax(1) == y).float().mean()}, prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 5)]


@pt.trial
def train(trial):
    return ElasticTrainer(trial, gradient_clip_val=10.0).fit(Net(trial.params["lr"]), datamodule=Points())


if __name__ == "__main__":
    pt.main()
