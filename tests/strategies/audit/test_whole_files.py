"""Files of tensors: whatever happens to one of them, it is never read as another."""

from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from strategies.audit.whole_files import load_tensors, save_tensors

TENSORS = {
    "weight": torch.arange(6.0).view(2, 3), "scalar": torch.tensor(0.5), "counts": torch.tensor([3, -1]),
    "half": torch.ones(3).half(), "none": torch.zeros(0, 4), "yes": torch.tensor([True, False]),
    "brain": torch.ones(2).bfloat16(),
}  # fmt: skip
ABOUT = {"about": '{"round": 3, "accuracy": 0.5, "word": "\u00fc"}'}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a.safetensors", TENSORS, ABOUT)
    tensors, about = load_tensors(tmp_path / "a.safetensors")
    assert about == ABOUT
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        torch.testing.assert_close(tensors[name], tensor, rtol=0, atol=0)


@pytest.mark.long
def test_no_flipped_bit_is_read_as_something_else(tmp_path: Path) -> None:
    """Every bit of the file."""
    path = tmp_path / "a.safetensors"
    save_tensors(path, TENSORS, ABOUT)
    data, refused = path.read_bytes(), 0
    for at in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        path.write_bytes(flipped)
        try:
            tensors, about = load_tensors(path)
        except (SafetensorError, ValueError):
            refused += 1
            continue
        # Bits that mean nothing, such as those of the space behind the header and of the key of the digest.
        assert about.items() >= ABOUT.items(), at
        assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items()), at
    assert refused > 0.9 * 8 * len(data)


def test_a_file_that_was_cut_off_or_stands_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, TENSORS, ABOUT)
    data = path.read_bytes()
    for share in (0.0, 0.3, 0.9, 0.999):
        path.write_bytes(data[: int(share * len(data))])
        with pytest.raises((SafetensorError, ValueError)):
            load_tensors(path)
    path.with_name("b.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=r"its digest is [0-9a-f]{32}, and [0-9a-f]{32} was written"):
        load_tensors(path.with_name("b.safetensors"))
