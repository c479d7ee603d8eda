"""A number of threads set for a while belongs to the thread that set it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from wordloom.kernels import threads
from wordloom.kernels.threads import one_thread, set_own_threads
from wordloom.run.models.side_by_side import side_by_side

pytestmark = [
    pytest.mark.threads2,
    pytest.mark.skipif(threads._runtime() is None, reason="PyTorch's OpenMP runtime cannot be reached"),
]


def in_a_new_thread(function=torch.get_num_threads):
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()


def test_a_thread_that_begins_meanwhile_is_not_held_to_one():
    inside, leave = threading.Event(), threading.Event()
    seen = []

    def begins() -> None:
        seen.append(torch.get_num_threads())  # its first call to PyTorch
        inside.set()
        leave.wait()
        seen.append(torch.get_num_threads())

    other = threading.Thread(target=begins)
    with one_thread():
        assert torch.get_num_threads() == 1
        other.start()
        inside.wait()
    leave.set()
    other.join()
    assert seen == [2, 2]
    assert torch.get_num_threads() == 2
    assert in_a_new_thread() == 2


def test_it_ends_with_the_block_whatever_happens_and_may_be_nested():
    with one_thread():
        with one_thread():
            pass
        assert torch.get_num_threads() == 1

    @one_thread()
    def fails() -> None:
        raise ValueError(torch.get_num_threads())

    with pytest.raises(ValueError, match="1"):
        fails()
    assert torch.get_num_threads() == 2

    def alone() -> list[int]:
        set_own_threads(1)
        return [torch.get_num_threads(), in_a_new_thread()]

    assert in_a_new_thread(alone) == [1, 2]


def test_products_use_the_number_that_was_set():
    runtime = threads._runtime()
    if not torch._C.has_mkl:
        pytest.skip("PyTorch was built without MKL")
    with one_thread():
        assert runtime.MKL_Get_Max_Threads() == 1
        assert in_a_new_thread(lambda: (torch.get_num_threads(), runtime.MKL_Get_Max_Threads())) == (2, 2)
    assert runtime.MKL_Get_Max_Threads() == 2


def test_batches_side_by_side_leave_other_threads_alone():
    seen = side_by_side(
        torch.nn.Linear(2, 2), lambda _: (torch.get_num_threads(), in_a_new_thread()), [1, 2, 3]
    )
    assert seen == [(1, 2)] * 3
    assert torch.get_num_threads() == 2
