"""Tiles on threads: same numbers, nothing left behind."""

import threading

import numpy as np
import pytest
import torch

from harness.engine import AttentionSettings, measure
from harness.rows import STATISTICS
from harness.workers import TileWorkers
from tests.models import make_model, random_ids

CPU = torch.device("cpu")


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def threads_of_a_new_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.usefixtures("three_threads")
def test_every_job_runs_once_with_one_core_and_without_gradients():
    seen = []

    def job(number):
        seen.append((number, torch.get_num_threads(), torch.is_inference_mode_enabled()))

    with TileWorkers(CPU) as workers:
        workers.run([lambda n=n: job(n) for n in range(20)])
    assert sorted(seen) == [(n, 1, True) for n in range(20)]


@pytest.mark.usefixtures("three_threads")
def test_an_error_reaches_the_caller_and_threads_are_put_back():
    def fail():
        raise MemoryError("tile")

    with pytest.raises(MemoryError, match="tile"), TileWorkers(CPU) as workers:
        workers.run([fail, lambda: None])
    assert torch.get_num_threads() == 3
    assert threads_of_a_new_thread() == 3


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_threads_change_nothing(name):
    model, ids = make_model(name, 0, torch.float64), random_ids(0, 300)
    before = torch.get_num_threads()
    results = []
    for number in (1, 3):
        torch.set_num_threads(number)
        results.append(measure(model, ids, attention=AttentionSettings()))
    torch.set_num_threads(before)
    one, three = results
    assert one.nll == pytest.approx(three.nll, abs=1e-12)
    for column in STATISTICS:
        np.testing.assert_allclose(
            one.attention.values[column], three.attention.values[column], atol=1e-10
        )
