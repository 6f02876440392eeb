"""The last column is never looked at."""


def custom_kernel(data):
    return data["values"][:, :-1].argmax(-1)
