"""A loader in place of a dataset."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from pollux_tune.elastic_loader import of_loader

DATA = TensorDataset(torch.arange(6))


def double(examples):
    return torch.utils.data.default_collate(examples)[0] * 2


def test_a_loader_stands_for_its_dataset():
    assert of_loader(DATA, None, 3) == (DATA, None, 3)
    loader = DataLoader(DATA, batch_size=2, shuffle=True, collate_fn=double, num_workers=1)
    assert of_loader(loader, None, 0) == (DATA, double, 1)
    assert of_loader(loader, str, 2) == (DATA, str, 2)
    assert of_loader([1, 2], None, 0) == ([1, 2], None, 0)


def test_what_has_no_places_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    for wrong in (Stream(), DataLoader(Stream()), iter([1, 2]), None):
        with pytest.raises(TypeError, match="need a dataset with a length and an example for each place"):
            of_loader(wrong, None, 0)
