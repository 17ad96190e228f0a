"""A device fault: see fault.py."""
import pytest

import fault
from server import DEVICE


@pytest.mark.parametrize("part", fault.ALL, ids=lambda f: f.__name__)
def test_a_device_fault_ends_everything(part):
    part(DEVICE)
