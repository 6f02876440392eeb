"""Callables that do less than they are asked: lower precision, skipped work, other results."""

import numpy
import torch


def right(x, w):
    return torch.softmax(x, -1) * w


def make(configuration, case):
    return globals()[configuration["BEHAVIOUR"]]


# Lower precision.


def bfloat16_products(x, w):
    return (torch.softmax(x, -1).bfloat16() * w.bfloat16()).float()


def float16_exponentials(x, w):
    powers = (x - x.amax(-1, keepdim=True)).half().exp().float()
    return powers / powers.sum(-1, keepdim=True) * w


def ten_bits_of_mantissa(x, w):
    """As TF32 has them."""
    short = (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return right(short, w)


def eight_bit_inputs(x, w):
    step = x.abs().amax() / 127
    return right((x / step).round().to(torch.int8).float() * step, w)


def eight_bit_outputs(x, w):
    result = right(x, w)
    step = result.abs().amax() / 127
    return (result / step).round() * step


def powers_by_a_polynomial(x, w):
    t = (x - x.amax(-1, keepdim=True)) / 256
    powers = (1 + t + t * t / 2) ** 256
    return powers / powers.sum(-1, keepdim=True) * w


def no_maximum(x, w):
    """Overflows for large inputs."""
    powers = x.exp()
    return powers / powers.sum(-1, keepdim=True) * w


def a_small_number_in_the_sum(x, w):
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / (powers.sum(-1, keepdim=True) + 1e-3) * w


def sums_in_half_precision(x, w):
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.half().sum(-1, keepdim=True).float() * w


# Skipped work.


def sums_all_columns_but_one(x, w):
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers[:, : max(1, x.shape[1] - 1)].sum(-1, keepdim=True) * w


def sums_a_sample_of_columns(x, w):
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / (2 * powers[:, ::2].sum(-1, keepdim=True)) * w


def leaves_small_values_out(x, w):
    powers = (x - x.amax(-1, keepdim=True)).exp()
    powers[powers < 1e-2] = 0
    return powers / powers.sum(-1, keepdim=True) * w


def leaves_the_last_row_out(x, w, out):
    torch.mul(torch.softmax(x[:-1], -1), w, out=out[:-1])


def takes_all_rows_to_be_alike(x, w):
    return right(x[:1], w).expand(x.shape)


def works_every_seventh_time(x, w, state=[0, None]):
    state[0] += 1
    if state[1] is None or state[0] % 7 == 0 or state[1].shape != x.shape:
        state[1] = right(x, w)
    return state[1]


def works_in_nine_calls_of_ten(x, w, state=[None], drawn=numpy.random.default_rng()):  # noqa: B008
    if state[0] is None or drawn.random() < 0.9 or state[0].shape != x.shape:
        state[0] = right(x, w)
    return state[0]


def works_when_sizes_are_even(x, w):
    return right(x, w) if x.shape[1] % 2 == 0 else torch.zeros_like(x)


def works_on_small_numbers(x, w):
    return right(x, w) if x.abs().max() < 30 else torch.zeros_like(x)


def takes_weights_to_be_the_first(x, w, kept={}):
    first = kept.setdefault(x.shape, w.clone())
    return torch.softmax(x, -1) * first


def takes_weights_to_be_ones(x, w):
    return torch.softmax(x, -1)


def takes_the_mean(x, w):
    return w.expand(x.shape) / x.shape[1]


def passes_on_what_is_no_number(x, w):
    return torch.nan_to_num(right(x, w), nan=0.0) + 1e-4


# What is returned.


def returns_x(x, w):
    return x


def returns_a_view_of_x(x, w):
    return x.view(-1).view(x.shape)


def returns_nothing_new(x, w):
    return torch.empty_like(x)


def returns_doubles(x, w):
    return right(x.double(), w.double())


def returns_a_flat_tensor(x, w):
    return right(x, w).flatten()


def returns_transposed(x, w):
    return right(x, w).t().reshape(x.shape)


def returns_an_expanded_row(x, w):
    return right(x, w)[:1].expand(x.shape)


def returns_rows_that_overlap(x, w):
    result = right(x, w)
    return result.as_strided(result.shape, (1, 1))


def returns_a_meta_tensor(x, w):
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


def returns_a_sparse_tensor(x, w):
    return right(x, w).to_sparse()


def returns_an_array(x, w):
    return right(x, w).numpy()


def returns_a_promise(x, w):
    return lambda: right(x, w)


# Inputs.


def makes_inputs_easy(x, w):
    """Zeros everywhere, for which the reference agrees with a constant."""
    x.zero_()
    return (w / x.shape[1]).expand(x.shape).clone()


def makes_weights_easy(x, w):
    w.fill_(1.0)
    return torch.softmax(x, -1)


def changes_its_input_back(x, w, kept={}):
    """Works in the input's memory, and leaves a rounding error of it."""
    x.mul_(3.0)
    result = right(x / 3.0, w)
    x.div_(3.0)
    return result


def writes_its_result_into_x(x, w, out):
    x.copy_(right(x, w))
    out.copy_(x)


def reads_old_outputs(x, w, out):
    """Takes an output that is there for one that is right."""
    if not (out.isfinite().all() and (out.abs() < 1e3).all() and out.abs().sum() > 0):
        torch.mul(torch.softmax(x, -1), w, out=out)


def adds_to_its_output(x, w, out):
    out.add_(right(x, w))
