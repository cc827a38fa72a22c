# SPDX-License-Identifier: Apache-2.0
"""Huge pages are asked for exactly where whole ones fit; the tensors are ordinary ones."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import pytest
import torch

from rtp_llm.ops import huge_pages

MIB = 2**20


def of_mapping(address: int, key: str) -> str:
    """What the kernel says of the mapping around `address`."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        span = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if span:
            inside = int(span[1], 16) <= address < int(span[2], 16)
        elif inside and line.startswith(f"{key}:"):
            return line.removeprefix(f"{key}:")
    raise AssertionError(f"no mapping at {address:#x}")


def asked_for_huge_pages(address: int) -> bool:
    """Whether the mapping around `address` carries the kernel's flag of madvise."""
    return " hg" in of_mapping(address, "VmFlags")


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages"
)
def test_whole_huge_pages_are_asked_for_and_the_rest_is_not() -> None:
    tensor = huge_pages.empty((5, MIB), torch.uint8)
    address = tensor.data_ptr()
    assert address % (2 * MIB) == 0
    assert asked_for_huge_pages(address)
    assert asked_for_huge_pages(address + 4 * MIB - 1)
    assert not asked_for_huge_pages(address + 4 * MIB)


def test_tensor_is_an_ordinary_one() -> None:
    tensor = huge_pages.empty((3, 700, 1111), torch.bfloat16)
    assert tensor.shape == (3, 700, 1111)
    assert tensor.dtype == torch.bfloat16
    assert tensor.is_contiguous()
    tensor.fill_(2)
    part = tensor[2]
    del tensor  # the memory lives as long as any view of it
    assert part.float().sum() == 2 * 700 * 1111


def test_small_and_empty_tensors() -> None:
    assert huge_pages.empty((7, 9), torch.float32).shape == (7, 9)
    assert huge_pages.empty((0, 9), torch.float32).shape == (0, 9)
    assert huge_pages.empty((), torch.int64).shape == ()


def test_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert huge_pages.empty((4 * MIB,), torch.int8).shape == (4 * MIB,)


def test_the_cpu_is_meant_whatever_the_default_device_is() -> None:
    with torch.device("meta"):
        small, large = huge_pages.empty((3,), torch.int8), huge_pages.empty((5, MIB), torch.int8)
    assert (small.device.type, large.device.type) == ("cpu", "cpu")


def test_on_another_device() -> None:
    there = huge_pages.empty_on(torch.device("meta"), (3, 4), torch.int8)
    assert (there.device.type, there.shape, there.dtype) == ("meta", (3, 4), torch.int8)
    here = huge_pages.empty_on(torch.device("cpu"), (3, 4), torch.int8)
    assert (here.device.type, here.shape, here.dtype) == ("cpu", (3, 4), torch.int8)


def lasting(size: int) -> torch.Tensor:
    return huge_pages.empty_lasting(torch.device("cpu"), (size,), torch.uint8)


def resident(tensor: torch.Tensor) -> int:
    """Bytes of memory in the mapping around a tensor."""
    return int(of_mapping(tensor.data_ptr(), "Rss").split()[0]) * 1024


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages"
)
def test_small_tensors_that_last_share_huge_pages() -> None:
    first, second = lasting(MIB // 2 + 1), lasting(MIB)
    assert second.data_ptr() - first.data_ptr() == MIB // 2 + 64
    assert all(asked_for_huge_pages(each.data_ptr() + each.numel() - 1) for each in (first, second))
    assert first.untyped_storage().nbytes() == first.numel()
    first.fill_(1)
    second.fill_(2)
    assert first.sum() == first.numel()


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages"
)
def test_a_tensor_that_dies_returns_its_memory_and_keeps_its_neighbours() -> None:
    first, second, third = (lasting(8 * MIB).fill_(number) for number in (1, 2, 3))
    before = resident(first)
    view = second[5:]
    del second
    assert resident(first) == before
    del view
    assert resident(first) <= before - 7 * MIB
    assert first.sum() == 8 * MIB and third.float().sum() == 3 * 8 * MIB


def test_large_and_empty_tensors_that_last_are_those_of_empty() -> None:
    assert lasting(65 * MIB).data_ptr() % (2 * MIB) == 0
    assert lasting(0).shape == (0,)
    there = huge_pages.empty_lasting(torch.device("meta"), (3,), torch.int8)
    assert there.device.type == "meta"


def test_tensors_that_last_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    monkeypatch.setattr(huge_pages, "_SHARING", huge_pages._Sharing())
    assert lasting(MIB).shape == (MIB,)
