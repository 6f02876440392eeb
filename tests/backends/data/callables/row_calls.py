"""Right callables; one of them takes 20 ms."""

import time

import torch


def make(configuration, case):
    return globals()[configuration["BEHAVIOUR"]]


def new(x):
    return 2 * x + 1


def keeps_its_buffer(x, kept={}):
    out = kept.setdefault(x.shape, torch.empty_like(x))
    return torch.add(2 * x, 1, out=out)


def given(x, out):
    torch.add(2 * x, 1, out=out)


def sleeps(x, out):
    time.sleep(0.02)
    given(x, out)
